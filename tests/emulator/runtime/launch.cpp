// A launch: blocks in the schedule's order, faults and timeouts turned into messages.
#include "machine.h"

#include <link.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>

namespace emu {

static const Kernel* kernel;
static void** kernel_arguments;

static void thread_main() {
    kernel->call(kernel_arguments);
    thread_exits();
}

// ---- the kernel's library: a program counter inside it may be abandoned at any time, and can be named by line
struct Library {
    uint64_t probe, base, end;
};
static Library library;

static void find_library() {
    library = {reinterpret_cast<uint64_t>(kernel->call), 0, 0};
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void*) {
            uint64_t end = info->dlpi_addr;
            for (int i = 0; i < info->dlpi_phnum; ++i)
                if (info->dlpi_phdr[i].p_type == PT_LOAD)
                    end = std::max(end,
                                   uint64_t(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz));
            if (library.probe < info->dlpi_addr || library.probe >= end) return 0;
            library.base = info->dlpi_addr;
            library.end = end;
            return 1;
        },
        nullptr);
}

static bool in_library(uint64_t pc) { return pc >= library.base && pc < library.end; }

// ---- signals
constexpr int caught[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM};
constexpr int caught_count = sizeof caught / sizeof *caught;

static void on_signal(int number, siginfo_t* info, void* context) {
    Machine& m = machine;
    if (!m.active) {
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    const uint64_t pc = uint64_t(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
    const std::string who = current ? name_of(running()) : "the launcher";
    if (number == SIGALRM) {
        m.expired = true;             // the scheduler looks at it; a loop without any call never gets there
        if (!in_library(pc)) return;  // the timer fires again
        m.error = "timeout: kernel still running in " + who;
    } else if (number == SIGFPE) {
        m.error = who + ": integer division by zero";
    } else if (number == SIGILL) {
        m.error = who + ": array index out of bounds, or unreachable code";
    } else {
        m.error = who + ": out-of-bounds or misaligned access, " + describe_address(uint64_t(info->si_addr));
    }
    m.pc = pc + 1;
    siglongjmp(m.escape, 1);
}

class SignalGuard {  // handlers, an alternate stack and the timer for the length of a launch
public:
    explicit SignalGuard(double timeout_s) {
        static char alternate[64 << 10];
        const stack_t own{alternate, 0, sizeof alternate};
        sigaltstack(&own, &old_stack_);
        struct sigaction action{};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        for (int i = 0; i < caught_count; ++i) sigaction(caught[i], &action, &old_[i]);
        sigevent event{};
        event.sigev_notify = SIGEV_THREAD_ID;  // only this OS thread may be interrupted
        event.sigev_signo = SIGALRM;
        event._sigev_un._tid = pid_t(syscall(SYS_gettid));
        timer_create(CLOCK_MONOTONIC, &event, &timer_);
        itimerspec when{};
        when.it_value.tv_sec = time_t(timeout_s);
        when.it_value.tv_nsec = long((timeout_s - double(time_t(timeout_s))) * 1e9) + 1;
        when.it_interval.tv_nsec = 1'000'000;
        timer_settime(timer_, 0, &when, nullptr);
    }
    ~SignalGuard() {
        timer_delete(timer_);
        for (int i = 0; i < caught_count; ++i) sigaction(caught[i], &old_[i], nullptr);
        sigaltstack(&old_stack_, nullptr);
    }

private:
    struct sigaction old_[caught_count];
    stack_t old_stack_;
    timer_t timer_;
};

// ---- blocks
static void start_block(Block& b, size_t slot, unsigned id) {
    Machine& m = machine;
    const unsigned threads = m.threads_per_block;
    b.id = id;
    b.index = {id % grid_size.x, id / grid_size.x % grid_size.y, id / grid_size.x / grid_size.y};
    b.live = threads;
    b.fibers = &m.fibers[slot * threads];
    b.warps.assign((threads + 31) / 32, Warp{});
    b.bulk_copies.clear();
    b.mbarriers.clear();
    b.shared = shared_of(slot);
    for (Barrier& barrier : b.barriers) barrier = Barrier{};
    poison_shared(b);
    races_begin_block(b);
    std::vector<Fiber*> order(threads);
    for (unsigned i = 0; i < threads; ++i) {
        Fiber& f = b.fibers[i];
        f.index = {i % block_size.x, i / block_size.x % block_size.y, i / block_size.x / block_size.y};
        f.block_index = b.index;
        f.lane = i % 32;
        f.id = i;
        f.block = &b;
        f.warp = &b.warps[i / 32];
        f.warp->lane[f.lane] = &f;
        f.warp->present |= 1u << f.lane;
        f.site = {"kernel start", 0};
        f.copy_group = 0;
        f.copies.clear();
        prepare_stack(&f, slot * threads + i, thread_main);
        order[i] = &f;
    }
    enqueue_all(order.data(), int(threads));
    m.live += threads;
}

static void run_blocks(unsigned blocks) {
    Machine& m = machine;
    if (m.options.cooperative) {
        for (unsigned i = 0; i < blocks; ++i) start_block(m.blocks[i], i, i);
        run_until_idle();
        for (const Block& b : m.blocks)
            if (m.error.empty()) check_red_zone(b);
        return;
    }
    std::vector<unsigned> order(blocks);
    for (unsigned i = 0; i < blocks; ++i) order[i] = m.options.order == 1 ? blocks - 1 - i : i;
    if (m.options.order == 2)
        for (unsigned i = blocks - 1; i > 0; --i) std::swap(order[i], order[random_number() % (i + 1)]);
    for (unsigned id : order) {
        start_block(m.blocks[0], 0, id);
        run_until_idle();
        if (m.error.empty()) check_red_zone(m.blocks[0]);
        if (!m.error.empty()) return;
    }
}

static void reset_machine(const Options& options, Result* result, unsigned threads, unsigned blocks,
                          unsigned dynamic_shared) {
    Machine& m = machine;
    const unsigned resident = options.cooperative ? blocks : 1;
    const size_t fibers = size_t(threads) * resident;
    m.options = options;
    m.result = result;
    m.error.clear();
    m.pc = 0;
    m.threads_per_block = threads;
    m.dynamic_shared = dynamic_shared;
    m.fibers.resize(fibers);
    m.blocks.resize(resident);
    m.ring.assign(fibers + 1, nullptr);
    m.ring_head = m.ring_count = 0;
    m.live = m.idle_yields = 0;
    m.random_state = 88172645463325252ull ^ uint64_t(options.seed) * 0x9e3779b97f4a7c15ull;
    m.expired = false;
    current = nullptr;
}

static double seconds_now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// Returns 0, or 1 with result->message set. The caller holds a lock: there is one machine.
extern "C" __attribute__((visibility("default"))) int emu_launch(const Kernel* k, const unsigned* grid,
                                                                 const unsigned* block, unsigned dynamic_shared,
                                                                 void** arguments, const Options* options,
                                                                 Result* result) {
    Machine& m = machine;
    const unsigned blocks = grid[0] * grid[1] * grid[2], threads = block[0] * block[1] * block[2];
    kernel = k;
    kernel_arguments = arguments;
    grid_size = dim3(grid[0], grid[1], grid[2]);
    block_size = dim3(block[0], block[1], block[2]);
    find_library();
    reset_machine(*options, result, threads, blocks, dynamic_shared);
    const double start = seconds_now();
    {
        SignalGuard guard(options->timeout_s);
        if (!sigsetjmp(m.escape, 1)) {
            reserve_stacks(m.fibers.size());
            reserve_shared(m.blocks.size(), dynamic_shared);
            races_begin(unsigned(m.blocks.size()));
            m.active = true;
            run_blocks(blocks);
        }
        m.active = false;
    }
    current = nullptr;
    races_end();
    result->seconds = seconds_now() - start;
    result->static_shared = uint32_t(static_shared_used());
    result->pc = in_library(m.pc) ? m.pc - library.base : 0;
    snprintf(result->message, sizeof result->message, "%s", m.error.c_str());
    return !m.error.empty();
}

}  // namespace emu
