#include "horon/ops/adasum/adasum_tasks.h"

#include <bit>
#include <utility>

namespace horon::ops {
namespace {

class TaskList {
 public:
  TaskList(int rank, int size, int64_t count) : rank_(rank), all_{0, count} {
    add({AdasumTask::Kind::CopyIn});
    const int paired = static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
    const bool is_extra = rank >= paired;
    const bool has_extra = rank < size - paired;
    if (is_extra) {
      add({AdasumTask::Kind::Exchange, rank - paired, all_});
      add({AdasumTask::Kind::Exchange, rank - paired, {}, all_});
    } else {
      if (has_extra) {
        add({AdasumTask::Kind::Exchange, rank + paired, {}, all_, true, false});
        combine(all_, true, 0);
      }
      halve(paired);
      if (has_extra) add({AdasumTask::Kind::Exchange, rank + paired, all_});
    }
    add({AdasumTask::Kind::ScaleResult});
  }

  std::vector<AdasumTask> take() { return std::move(tasks_); }

 private:
  void add(const AdasumTask& task) { tasks_.push_back(task); }

  // `distance`: the products are summed over the parts of 2 * `distance` ranks; 0: one rank has all
  // parts.
  void combine(const AdasumRange& range, bool own_first, int distance) {
    add({AdasumTask::Kind::Products, -1, {}, range, own_first});
    for (int step = 1; step <= distance; step *= 2) {
      add({AdasumTask::Kind::SumProducts, rank_ ^ step});
    }
    add({AdasumTask::Kind::Combine, -1, {}, range, own_first});
  }

  void halve(int paired) {
    std::vector<AdasumTask> back;
    AdasumRange range = all_;
    for (int distance = 1; distance < paired; distance *= 2) {
      const int peer = rank_ ^ distance;
      const bool own_first = (rank_ & distance) == 0;
      const int64_t middle = range.begin + range.count() / 2;
      AdasumRange kept{range.begin, middle};
      AdasumRange given{middle, range.end};
      if (!own_first) std::swap(kept, given);
      add({AdasumTask::Kind::Exchange, peer, given, kept, own_first, false});
      combine(kept, own_first, distance);
      back.push_back({AdasumTask::Kind::Exchange, peer, kept, given});
      range = kept;
    }
    for (; !back.empty(); back.pop_back()) add(back.back());
  }

  const int rank_;
  const AdasumRange all_;
  std::vector<AdasumTask> tasks_;
};

}  // namespace

std::vector<AdasumTask> adasum_tasks(int rank, int size, int64_t count) {
  return TaskList(rank, size, count).take();
}

}  // namespace horon::ops
