// Runs a job that a text file tells, and writes what happens below each command.
//
//   # a comment
//   ranks 2 fusion=1024 alone=256 inflight=1 dead=10 stall=10 abort=0   (seconds and bytes)
//   submit 0,1 grad float64 Average shape=2x3 absent=1                  (or root=1, part=NAME:2x3)
//   submit 0 grad +                  (the library does nothing before the rank's next call)
//   refuse 0 grad | join 0 | shutdown all | fail 1 TEXT | die 1
//   deliver 1 0 [COUNT]              (the oldest messages, read in one go)
//   deliver all                      (until nothing is on its way)
//   finish 0 | finish all            (the oldest batch; all, until nothing runs)
//   tick all 1.5                     (the time in seconds)
//   pass 10                          (so many seconds go by for all, with all messages; questions
//                                     whether somebody lives are not shown)
//   open                             (what the coordinator waits for)
//
// Lines that begin with two spaces are what happened.
#pragma once

#include <string>

namespace horon::simulation {

// Returns the text with the answers of this run in place of those in it. Throws
// std::invalid_argument for a command that it does not know.
std::string run_transcript(const std::string& text);

}  // namespace horon::simulation
