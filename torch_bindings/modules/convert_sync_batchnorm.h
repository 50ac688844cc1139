// Replaces the BatchNorms of a model by SyncBatchNorms.
//
//   horon::convert_sync_batchnorm(*model);
//
// What can be replaced: BatchNorm1d, 2d and 3d in a Sequential, ModuleList or ModuleDict (or a
// class derived from one), however deep in the model, and in an AnyModule. Parameters and buffers
// stay the same tensors under the same names, so an optimizer, an archive or a reducer made before
// goes on; so do options and mode.
//
// What can't: a BatchNorm that a class of the program holds in a member of its own type. In C++
// that member, and the call through it, stays what it is: Module::replace_module() changes only the
// list of submodules, so the class would go on without the other ranks. Such a member is declared
// as horon::SyncBatchNorm instead, which takes the same options and inputs. Where there is one, or
// a class derived from BatchNorm, the call throws Error(InvalidArgument) that names all of them,
// and changes nothing.
//
// Code that holds a replaced module elsewhere still has the old one. A forward() of the program
// that takes modules out of a ModuleList or ModuleDict by type, as `list->at<BatchNorm2dImpl>(0)`
// does, must ask for SyncBatchNormImpl. No communication.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include "horon/ops/session/process_set.h"

namespace horon {

// Calls are made by all ranks alike. `process_set`: of the new modules.
void convert_sync_batchnorm(torch::nn::Module& model, const ProcessSet& process_set = {});
// Also replaces what the AnyModule holds itself.
void convert_sync_batchnorm(torch::nn::AnyModule& model, const ProcessSet& process_set = {});

}  // namespace horon
