// A job of which one rank goes wrong: what its program does itself.
// tests/ops/faults/fault_matrix.py starts such programs and checks what the other ranks say:
//
//   PROGRAM SITUATION FAULT RANK FOLDER
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace horon::testing_support {

class FaultJob {
 public:
  // After init() of Horon: the arguments of main().
  FaultJob(int argc, char** argv);

  const std::string& situation() const { return situation_; }
  const std::string& fault() const { return fault_; }
  bool is_guilty() const { return is_guilty_; }

  // On the guilty rank, once. Returns after a stop that was continued and after leaving the job.
  void do_fault() const;
  bool fault_was_done() const { return std::filesystem::exists(folder_ / "fault"); }
  // The process of the guilty rank is over.
  bool guilty_has_ended() const { return std::filesystem::exists(folder_ / ("ended." + guilty_)); }

  // Runs `work` and tells the text of the horon::Error that it ends with; every rank that lives on
  // does so. Returns the exit code of the program.
  int run(const std::function<void()>& work) const;

 private:
  void write(const std::string& name, const std::string& text) const;

  std::string situation_, fault_, guilty_;
  std::filesystem::path folder_;
  bool is_guilty_ = false;
};

}  // namespace horon::testing_support
