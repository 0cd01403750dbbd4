// Warp collectives. The last lane of the mask to arrive resolves the operation for all: every lane's argument struct
// lies on its suspended stack, so results are written straight there.
#include "machine.h"

#include <algorithm>

namespace emu {

const char* name_of(Collective c) {
    static const char* const names[] = {"__syncwarp", "shuffle",  "ballot", "match",
                                        "reduce",     "ldmatrix", "mma",    "named barrier"};
    return names[int(c)];
}

template <class F>
static void for_each_lane(unsigned mask, F f) {
    for (; mask; mask &= mask - 1) f(__builtin_ctz(mask));
}

static void check_same_call(const Fiber* a, const Fiber* b) {
    if (a->collective != b->collective || !same(a->site, b->site))
        fail_at(a->site,
                format("divergent warp collective: lane %u is in %s at %s, lane %u in %s at %s, same mask %08x",
                       a->lane, name_of(a->collective), name_of(a->site).c_str(), b->lane, name_of(b->collective),
                       name_of(b->site).c_str(), a->mask));
}

void collect(unsigned mask, Collective kind, void* argument, void (*resolve)(Warp&, unsigned), Site site) {
    Fiber* f = running();
    Warp& w = *f->warp;
    const unsigned mine = 1u << f->lane, absent = mask & (w.exited | ~w.present);
    if (!(mask & mine))
        fail_at(site, format("%s: the calling lane %u is not in mask %08x", name_of(kind), f->lane, mask));
    if (absent)
        fail_at(site,
                format("%s: mask %08x names lanes that exited or do not exist (%08x)", name_of(kind), mask, absent));
    f->mask = mask;
    f->collective = kind;
    f->argument = argument;
    f->site = site;
    f->state = State::in_collective;
    w.waiting |= mine;
    bool complete = (w.waiting & mask) == mask;
    if (complete)
        for_each_lane(mask, [&](int lane) {
            const Fiber* other = w.lane[lane];
            if (other->mask != mask) complete = false;
            else check_same_call(f, other);
        });
    if (!complete) return block_current();

    resolve(w, mask);
    ++machine.result->collectives;
    machine.idle_yields = 0;
    w.waiting &= ~mask;
    Fiber* others[32];
    int count = 0;
    for_each_lane(mask & ~mine, [&](int lane) { others[count++] = w.lane[lane]; });
    enqueue_all(others, count);
    f->state = State::running;
}

void warp_sync(unsigned mask, Site site) {
    collect(
        mask, Collective::sync, nullptr,
        [](Warp& w, unsigned lanes) {
            for_each_lane(lanes, [&](int lane) { release_to(&w, w.lane[lane]); });
            publish(&w);
            for_each_lane(lanes, [&](int lane) { acquire_from(&w, w.lane[lane]); });
        },
        site);
}

struct Exchange {
    uint64_t in, out;
    int source;
    Reduction reduction;
};
static Exchange& exchange(Warp& w, int lane) { return *static_cast<Exchange*>(w.lane[lane]->argument); }

uint64_t shuffle(unsigned mask, uint64_t value, int source, Site site) {
    Exchange x{value, 0, source, {}};
    collect(
        mask, Collective::shuffle, &x,
        [](Warp& w, unsigned lanes) {
            for_each_lane(lanes, [&](int lane) {
                Exchange& x = exchange(w, lane);
                if (!(lanes >> x.source & 1))
                    fail_at(running()->site,
                            format("shuffle: lane %d reads lane %d, which is not in mask %08x", lane, x.source, lanes));
                x.out = exchange(w, x.source).in;
            });
        },
        site);
    return x.out;
}

unsigned ballot(unsigned mask, bool predicate, Site site) {
    Exchange x{predicate, 0, 0, {}};
    collect(
        mask, Collective::ballot, &x,
        [](Warp& w, unsigned lanes) {
            unsigned votes = 0;
            for_each_lane(lanes, [&](int lane) { votes |= unsigned(exchange(w, lane).in) << lane; });
            for_each_lane(lanes, [&](int lane) { exchange(w, lane).out = votes; });
        },
        site);
    return unsigned(x.out);
}

unsigned match_any(unsigned mask, uint64_t value, Site site) {
    Exchange x{value, 0, 0, {}};
    collect(
        mask, Collective::match, &x,
        [](Warp& w, unsigned lanes) {
            for_each_lane(lanes, [&](int lane) {
                unsigned equal = 0;
                for_each_lane(lanes, [&](int other) {
                    equal |= unsigned(exchange(w, other).in == exchange(w, lane).in) << other;
                });
                exchange(w, lane).out = equal;
            });
        },
        site);
    return unsigned(x.out);
}

static unsigned combine(Reduction r, unsigned a, unsigned b) {
    switch (r) {
        case Reduction::add: return a + b;
        case Reduction::min_unsigned: return std::min(a, b);
        case Reduction::max_unsigned: return std::max(a, b);
        case Reduction::min_signed: return unsigned(std::min(int(a), int(b)));
        case Reduction::max_signed: return unsigned(std::max(int(a), int(b)));
        case Reduction::bit_and: return a & b;
        case Reduction::bit_or: return a | b;
        case Reduction::bit_xor: return a ^ b;
    }
    __builtin_unreachable();
}

unsigned reduce(unsigned mask, unsigned value, Reduction reduction, Site site) {
    Exchange x{value, 0, 0, reduction};
    collect(
        mask, Collective::reduce, &x,
        [](Warp& w, unsigned lanes) {
            const int first = __builtin_ctz(lanes);
            unsigned total = unsigned(exchange(w, first).in);
            for_each_lane(lanes & (lanes - 1), [&](int lane) {
                total = combine(exchange(w, first).reduction, total, unsigned(exchange(w, lane).in));
            });
            for_each_lane(lanes, [&](int lane) { exchange(w, lane).out = total; });
        },
        site);
    return unsigned(x.out);
}

unsigned active_lanes() { return running()->warp->present & ~running()->warp->exited; }

}  // namespace emu
