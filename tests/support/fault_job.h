// A job in which one rank goes wrong: the part that its program does itself.
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
  // To be made after init() of Horon, with the arguments of main().
  FaultJob(int argc, char** argv);

  const std::string& situation() const { return situation_; }
  const std::string& fault() const { return fault_; }
  bool is_guilty() const { return is_guilty_; }

  // Does the fault; called once, on the guilty rank. It returns at once for `signal`, whose exit
  // comes later, after leaving the job, and after a stop that was continued.
  void do_fault() const;
  bool fault_was_done() const { return std::filesystem::exists(folder_ / "fault"); }
  // Whether the process of the guilty rank is over.
  bool guilty_has_ended() const { return std::filesystem::exists(folder_ / ("ended." + guilty_)); }

  // Runs `work`, and writes the text of the horon::Error that it ends with to a file. Every rank
  // that lives on calls it. Returns the exit code of the program.
  int run(const std::function<void()>& work) const;

 private:
  void write(const std::string& name, const std::string& text) const;

  std::string situation_, fault_, guilty_;
  std::filesystem::path folder_;
  bool is_guilty_ = false;
};

}  // namespace horon::testing_support
