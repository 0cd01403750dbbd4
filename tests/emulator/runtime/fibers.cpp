// Fibers, their stacks and the order in which they run. A fiber runs until it waits in a barrier or a collective.
#include "machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

// Saves the callee-saved registers of the running fiber on its stack and resumes another one. An indirect jump instead
// of ret: the return predictor would always be wrong.
asm(R"(
.text
.globl emu_switch
.hidden emu_switch
.type emu_switch, @function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmp *%rcx
.size emu_switch, . - emu_switch
)");
extern "C" void emu_switch(void** save_stack_pointer, void* stack_pointer);

namespace emu {

Machine machine;
ThreadView* current;
dim3 grid_size, block_size;

// ---- stacks: kept between launches, each with inaccessible pages below it
constexpr size_t stack_bytes = 128 << 10, stack_guard = 16 << 10;
constexpr size_t stack_chunk = 256;  // stacks mapped together
static std::vector<char*> stack_chunks;

void reserve_stacks(size_t count) {
    while (stack_chunks.size() * stack_chunk < count) {
        void* chunk = mmap(nullptr, stack_chunk * stack_bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (chunk == MAP_FAILED) return stop("out of memory: cannot map thread stacks");
        for (size_t i = 0; i < stack_chunk; ++i)
            mprotect(static_cast<char*>(chunk) + i * stack_bytes, stack_guard, PROT_NONE);
        stack_chunks.push_back(static_cast<char*>(chunk));
    }
}

bool on_a_stack(const void* p) {
    for (char* chunk : stack_chunks)
        if (size_t(static_cast<const char*>(p) - chunk) < stack_chunk * stack_bytes) return true;
    return false;
}

void prepare_stack(Fiber* f, size_t slot, void (*entry)()) {
    char* top = stack_chunks[slot / stack_chunk] + (slot % stack_chunk + 1) * stack_bytes;
    top -= slot % 61 * 192;  // equal offsets would make all stacks share the same cache sets
    void** frame = reinterpret_cast<void**>((uintptr_t(top) & ~uintptr_t(15)) - 16);
    *frame = reinterpret_cast<void*>(entry);
    frame -= 6;  // the six registers that emu_switch pops
    memset(frame, 0, 6 * sizeof(void*));
    f->stack_pointer = frame;
}

// ---- the run queue
uint64_t random_number() {  // xorshift64
    uint64_t& x = machine.random_state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}

static void put(Fiber* f, bool at_front) {
    Machine& m = machine;
    const size_t capacity = m.ring.size();
    f->state = State::ready;
    if (at_front) {
        m.ring_head = (m.ring_head ? m.ring_head : capacity) - 1;
        m.ring[m.ring_head] = f;
    } else {
        const size_t tail = m.ring_head + m.ring_count;
        m.ring[tail < capacity ? tail : tail - capacity] = f;
    }
    ++m.ring_count;
}

static Fiber* take() {
    Machine& m = machine;
    Fiber* f = m.ring[m.ring_head];
    if (++m.ring_head == m.ring.size()) m.ring_head = 0;
    --m.ring_count;
    f->state = State::running;
    return f;
}

void enqueue(Fiber* f) { put(f, machine.options.depth_first); }

void enqueue_all(Fiber** fibers, int count) {
    const Options& o = machine.options;
    if (o.order == 2) {
        for (int i = count - 1; i > 0; --i) std::swap(fibers[i], fibers[random_number() % (i + 1)]);
    } else if ((o.order == 1) != (o.depth_first != 0)) {  // put at the front, the last one runs first
        std::reverse(fibers, fibers + count);
    }
    for (int i = 0; i < count; ++i) enqueue(fibers[i]);
}

void block_current() {
    Machine& m = machine;
    if (m.expired) stop("timeout: kernel still running in " + name_of(running()));
    if (!m.ring_count) deadlock();
    Fiber* me = running();
    Fiber* next = take();
    ++m.result->switches;
    current = next;
    if (next != me) emu_switch(&me->stack_pointer, next->stack_pointer);
}

void yield(Site site) {
    constexpr uint64_t patience = 2'000'000;  // yields without any barrier, collective or exit in between
    if (++machine.idle_yields > patience)
        fail_at(site,
                "livelock: only spinning threads remain (a flag is never set, or the launch must be cooperative)");
    running()->site = site;
    put(running(), false);
    block_current();
}

void run_until_idle() {
    Fiber* first = take();
    current = first;
    emu_switch(&machine.main_stack_pointer, first->stack_pointer);
    current = nullptr;
}

void leave_fibers() {
    if (!current) siglongjmp(machine.escape, 1);
    void* never_resumed;
    emu_switch(&never_resumed, machine.main_stack_pointer);
    __builtin_unreachable();
}

}  // namespace emu
