// __syncthreads (barrier 0, counted by thread) and the named barriers 1..15 (counted by warp).
#include "machine.h"

namespace emu {

static void open(Barrier& b) {
    ++machine.result->barriers;
    machine.idle_yields = 0;
    ++b.generation;
    b.arrived = b.expected = 0;
    publish(&b);
    for (Fiber* f : b.waiting) {
        f->votes = b.votes;
        acquire_from(&b, f);
    }
    std::vector<Fiber*> released;
    released.swap(b.waiting);
    enqueue_all(released.data(), int(released.size()));
}

static void wait_at(Barrier& b, int id, Site site) {
    Fiber* f = running();
    f->state = State::in_barrier;
    f->barrier = id;
    f->site = site;
    b.waiting.push_back(f);
}

Votes block_barrier(int predicate, Site site) {
    Fiber* f = running();
    Barrier& b = f->block->barriers[0];
    if (!b.arrived) {
        b.site = site;
        b.votes = {0, false, true};
    } else if (!same(b.site, site)) {
        fail_at(site, format("divergent __syncthreads: this thread is at %s, others wait at %s", name_of(site).c_str(),
                             name_of(b.site).c_str()));
    }
    b.votes.count += predicate != 0;
    b.votes.any |= predicate != 0;
    b.votes.all &= predicate != 0;
    ++b.arrived;
    release_to(&b, f);
    wait_at(b, 0, site);
    if (b.arrived == int(f->block->live)) open(b);
    block_current();
    return f->votes;
}

// The exit of a thread may complete a __syncthreads of the others.
void thread_exits() {
    Fiber* f = running();
    f->state = State::done;
    f->warp->exited |= 1u << f->lane;
    --f->block->live;
    --machine.live;
    machine.idle_yields = 0;
    check_finished_copies(f);
    if (!f->block->live) check_finished_copies(*f->block);
    Barrier& b = f->block->barriers[0];
    if (b.arrived && b.arrived == int(f->block->live)) open(b);
    if (!machine.live) leave_fibers();
    block_current();
}

struct Arrival {
    int id, threads;
    bool wait;
    unsigned generation;
};

static void arrive(Warp& w, unsigned lanes) {
    const Arrival first = *static_cast<Arrival*>(running()->argument);
    Barrier& b = running()->block->barriers[first.id];
    const Site site = running()->site;
    if (!b.arrived) {
        b.expected = first.threads;
        b.site = site;
    } else if (b.expected != first.threads) {
        fail_at(site, format("barrier %d: %d threads here, %d at %s", first.id, first.threads, b.expected,
                             name_of(b.site).c_str()));
    }
    for (; lanes; lanes &= lanes - 1) {
        Fiber* f = w.lane[__builtin_ctz(lanes)];
        Arrival& a = *static_cast<Arrival*>(f->argument);
        if (a.id != first.id || a.threads != first.threads || a.wait != first.wait)
            fail_at(site, "the lanes of a warp disagree on the barrier");
        a.generation = b.generation;
        release_to(&b, f);
    }
    b.arrived += 32;
    if (b.arrived > b.expected) fail_at(site, format("barrier %d: more than %d threads arrived", first.id, b.expected));
    if (b.arrived == b.expected) open(b);
}

void named_barrier(int id, int threads, bool wait, Site site) {
    Fiber* f = running();
    const int whole_warps = int(machine.threads_per_block + 31) / 32 * 32;
    if (id < 1 || id > 15) fail_at(site, format("named barrier %d: use 1..15 (0 is __syncthreads)", id));
    if (threads <= 0 || threads % 32)
        fail_at(site, format("barrier %d: %d threads is not a multiple of 32", id, threads));
    if (threads > whole_warps)
        fail_at(site,
                format("barrier %d expects %d threads, the block has %u", id, threads, machine.threads_per_block));
    Arrival a{id, threads, wait, 0};
    collect(active_lanes(), Collective::named_barrier, &a, arrive, site);
    Barrier& b = f->block->barriers[id];
    if (!wait) return;
    if (b.generation != a.generation) return acquire_from(&b, f);  // this warp was the last one
    wait_at(b, id, site);
    block_current();
}

}  // namespace emu
