// Warp collectives: the last lane of a mask to arrive computes the result of all.
#pragma once
#include "thread.h"

namespace emu {

enum class Reduction { add, min_unsigned, max_unsigned, min_signed, max_signed, bit_and, bit_or, bit_xor };

void warp_sync(unsigned mask, Site);
uint64_t shuffle(unsigned mask, uint64_t value, int source_lane, Site);
unsigned ballot(unsigned mask, bool predicate, Site);
unsigned match_any(unsigned mask, uint64_t value, Site);
unsigned reduce(unsigned mask, unsigned value, Reduction, Site);
unsigned active_lanes();

template <class T>
inline T shuffle_from(unsigned mask, T value, int source_lane, Site site) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    bits = shuffle(mask, bits, source_lane, site);
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

// The GPU reads five bits of a distance. Sources outside the segment of `width` lanes leave the value as it is.
template <class T>
inline T shuffle_xor(T value, int distance, Site site, unsigned mask = ~0u, int width = 32) {
    const int lane = current->lane, source = lane ^ (distance & 31);
    return shuffle_from(mask, value, source > (lane | (width - 1)) ? lane : source, site);
}

template <class T>
inline unsigned match_bits(unsigned mask, T value, Site site) {
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    return match_any(mask, bits, site);
}

}  // namespace emu

inline void __syncwarp(unsigned mask = ~0u, emu::Site site = emu::Site::here()) { emu::warp_sync(mask, site); }
inline unsigned __activemask() { return emu::active_lanes(); }

template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, emu::Site site = emu::Site::here()) {
    return emu::shuffle_from(mask, value, (emu::current->lane & ~(width - 1)) | (source & (width - 1)), site);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int distance, int width = 32, emu::Site site = emu::Site::here()) {
    return emu::shuffle_xor(value, distance, site, mask, width);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32, emu::Site site = emu::Site::here()) {
    const int lane = emu::current->lane, source = lane - int(distance & 31);
    return emu::shuffle_from(mask, value, source < (lane & ~(width - 1)) ? lane : source, site);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32,
                          emu::Site site = emu::Site::here()) {
    const int lane = emu::current->lane, source = lane + int(distance & 31);
    return emu::shuffle_from(mask, value, source > (lane | (width - 1)) ? lane : source, site);
}

inline unsigned __ballot_sync(unsigned mask, int p, emu::Site site = emu::Site::here()) {
    return emu::ballot(mask, p, site);
}
inline int __any_sync(unsigned mask, int p, emu::Site site = emu::Site::here()) {
    return emu::ballot(mask, p, site) != 0;
}
inline int __all_sync(unsigned mask, int p, emu::Site site = emu::Site::here()) {
    return emu::ballot(mask, p, site) == mask;
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T value, emu::Site site = emu::Site::here()) {
    return emu::match_bits(mask, value, site);
}

#define EMU_REDUCE(name, type, reduction)                                                 \
    inline type name(unsigned mask, type value, emu::Site site = emu::Site::here()) {     \
        return type(emu::reduce(mask, unsigned(value), emu::Reduction::reduction, site)); \
    }
EMU_REDUCE(__reduce_add_sync, unsigned, add)
EMU_REDUCE(__reduce_add_sync, int, add)
EMU_REDUCE(__reduce_min_sync, unsigned, min_unsigned)
EMU_REDUCE(__reduce_min_sync, int, min_signed)
EMU_REDUCE(__reduce_max_sync, unsigned, max_unsigned)
EMU_REDUCE(__reduce_max_sync, int, max_signed)
EMU_REDUCE(__reduce_and_sync, unsigned, bit_and)
EMU_REDUCE(__reduce_or_sync, unsigned, bit_or)
EMU_REDUCE(__reduce_xor_sync, unsigned, bit_xor)
#undef EMU_REDUCE
