// What `budget: auto` keeps between rounds, in device memory: zeros at first, but 1 for `draft` and every `ratio`. templates/budget.py has its
// layout for the host, and what the host writes when a sequence joins. See choose_budget.cuh and pending.cuh.
#pragma once
#include "ddtree/prims.cuh"

namespace ddtree {

template <int DEPTHS>
struct BudgetSlot {
    double hits[DEPTHS], mass[DEPTHS];   // children of accepted nodes by depth: accepted, and expected; decayed
    double ratio[DEPTHS];                // (kPrior + hits) / (kPrior + mass)
    double factor[DEPTHS + 1];           // what this round's choice multiplied a path's probability by, for each of its depths
    int walk;                            // node of the last tree that the tokens have reached, plus 1; 0: they left it
    int full;                            // nodes of that tree
    int waiting;                         // committed rows whose features the drafter has not taken in
};

template <int DEPTHS, int SEQUENCES>
struct BudgetState {
    double lost;       // rounds lost against decoding without drafts, 0..kPatience
    double ms;         // cost of this round
    double expected;   // tokens expected of it
    double before;     // `lost` before it
    int draft;         // whether the round drafts: read before the draft, written by settle_budget for the next one
    int waited;        // rounds since the last draft
    int rows;          // of this round, all sequences
    int bucket;        // index of its row capacity
    int take_in;       // whether the drafter takes in what is waiting, before it drafts
    int drafted;       // whether this round drafts: `draft` until settle_budget
    BudgetSlot<DEPTHS> slot[SEQUENCES];
};

template <class Config>
using BudgetStateOf = BudgetState<Config::depths, Config::sequences>;

constexpr double kPrior = 1., kDecay = 0.95, kPatience = 1.5, kPrice = 40.;   // as in graph/budget.py
constexpr int kProbe = 16;

}  // namespace ddtree
