// The launch entry of a kernel: its parameter list, so that the launcher can check and convert arguments.
#pragma once
#include "thread.h"

namespace emu {

struct Parameter {
    char kind;      // 'p' pointer, 'f' floating point, 'i' signed, 'u' unsigned, 's' struct
    unsigned size;  // bytes
};

struct Kernel {
    void (*call)(void** arguments);
    int count, max_threads;
    const Parameter* parameters;
};

template <class T>
constexpr char kind_of() {
    if constexpr (__is_class(T)) return 's';
    else if constexpr (T(1) / 2 != 0) return 'f';
    else return T(-1) < T(0) ? 'i' : 'u';
}
template <class T>
struct Kind {
    static constexpr char value = kind_of<T>();
};
template <class T>
struct Kind<T*> {
    static constexpr char value = 'p';
};

template <class T>
struct Plain {
    using type = T;
};
template <class T>
struct Plain<const T> {
    using type = T;
};

constexpr int first(int x, int = 0) { return x; }

template <auto F>
struct Entry;
template <class... A, void (*F)(A...)>
struct Entry<F> {
    static constexpr int count = sizeof...(A);
    static constexpr Parameter parameters[count + 1] = {{Kind<typename Plain<A>::type>::value, sizeof(A)}..., {0, 0}};

    static void call(void** arguments) {
        struct Call {  // braces promise left to right, a plain call promises no order
            Call(A... a) { F(a...); }
        };
        [[maybe_unused]] int next = 0;
        Call{*static_cast<typename Plain<A>::type*>(arguments[next++])...};
    }
};

}  // namespace emu

// EMULATED_KERNEL(name, launch bounds)
#define EMULATED_KERNEL(name, ...)                                                          \
    extern "C" __attribute__((visibility("default"))) const emu::Kernel emulated_##name = { \
        emu::Entry<&name>::call, emu::Entry<&name>::count, emu::first(__VA_ARGS__), emu::Entry<&name>::parameters};
