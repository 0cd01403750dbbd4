// The launch entry of a kernel: its parameter list, so that the launcher can check and convert arguments.
#pragma once
#include "thread.h"

namespace emu {

struct Parameter {
    char kind;                     // 'p' pointer, 'f' floating point, 'i' signed, 'u' unsigned, 's' struct
    unsigned size;                 // bytes
};

struct Kernel {
    void (*call)(void** arguments);
    int count, max_threads;
    const Parameter* parameters;
};

template <class T> constexpr char kind_of = 's';
template <class T> constexpr char kind_of<T*> = 'p';
template <> constexpr inline char kind_of<float> = 'f';
template <> constexpr inline char kind_of<double> = 'f';
template <> constexpr inline char kind_of<bool> = 'u';
template <> constexpr inline char kind_of<signed char> = 'i';
template <> constexpr inline char kind_of<short> = 'i';
template <> constexpr inline char kind_of<int> = 'i';
template <> constexpr inline char kind_of<long> = 'i';
template <> constexpr inline char kind_of<long long> = 'i';
template <> constexpr inline char kind_of<unsigned char> = 'u';
template <> constexpr inline char kind_of<unsigned short> = 'u';
template <> constexpr inline char kind_of<unsigned> = 'u';
template <> constexpr inline char kind_of<unsigned long> = 'u';
template <> constexpr inline char kind_of<unsigned long long> = 'u';

template <class T> struct Plain { using type = T; };
template <class T> struct Plain<const T> { using type = T; };

constexpr int first(int x, int = 0) { return x; }

template <auto F> struct Entry;
template <class... A, void (*F)(A...)>
struct Entry<F> {
    static constexpr int count = sizeof...(A);
    static constexpr Parameter parameters[count + 1] = {{kind_of<typename Plain<A>::type>, sizeof(A)}..., {0, 0}};

    static void call(void** arguments) {
        struct Call { Call(A... a) { F(a...); } };   // its braces promise left to right, a plain call promises no order
        [[maybe_unused]] int next = 0;
        Call{*static_cast<typename Plain<A>::type*>(arguments[next++])...};
    }
};

}  // namespace emu

// EMULATED_KERNEL(name, launch bounds)
#define EMULATED_KERNEL(name, ...)                                                                                       \
    extern "C" __attribute__((visibility("default"))) const emu::Kernel emulated_##name = {                              \
        emu::Entry<&name>::call, emu::Entry<&name>::count, emu::first(__VA_ARGS__), emu::Entry<&name>::parameters};
