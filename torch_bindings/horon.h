// Horon: MPI-native, Horovod-style training of LibTorch programs on many processes.
//
// This header is all of it. Started with `mpirun -np N ./train`, every process (rank) trains the
// same model on its own samples. What a program adds to become one of N:
//
//   horon::init();                                 // who am I: rank(), size(), local_rank(), ...
//   model->to(horon::device());                    // where model and data go
//   horon::DistributedRandomSampler sampler(60000);          // this rank's samples, for a loader
//   horon::broadcast_parameters(*model, 0);        // all begin alike
//   horon::DistributedOptimizer optimizer(         // gradients are reduced while backward() runs
//       torch::optim::SGD(model->parameters(), 0.1), *model);
//   at::Tensor mean = horon::allreduce(x);         // also broadcast, allgather, ...; with _async
//                                                  // they return a Handle
//   horon::shutdown();                             // optional: also done at exit
//
// Everything is in namespace horon. Failures are horon::Error with a code(), the same on all ranks
// where all are concerned; nothing waits in silence for a rank that does not come.
#pragma once

// Ahead of the headers, so that this is the first error.
static_assert(__cplusplus > 201703L,
              "Horon needs C++20: compile with -std=c++20, in CMake set(CMAKE_CXX_STANDARD 20)");

#include "horon/core/base/error.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/amp/autocast.h"
#include "horon/torch_bindings/amp/grad_scaler.h"
#include "horon/torch_bindings/checkpoint/checkpoints.h"
#include "horon/torch_bindings/collectives/autograd.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/finite_check.h"
#include "horon/torch_bindings/collectives/grouped_collectives.h"
#include "horon/torch_bindings/collectives/objects.h"
#include "horon/torch_bindings/collectives/point_to_point.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/collectives/shared_tensor.h"
#include "horon/torch_bindings/collectives/sparse_allreduce.h"
#include "horon/torch_bindings/data/cifar_dataset.h"
#include "horon/torch_bindings/data/idx_dataset.h"
#include "horon/torch_bindings/data/image_file.h"
#include "horon/torch_bindings/data/image_folder.h"
#include "horon/torch_bindings/data/prefetch_loader.h"
#include "horon/torch_bindings/data/samplers.h"
#include "horon/torch_bindings/data/stream_sampler.h"
#include "horon/torch_bindings/gradients/adasum_optimizer.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"
#include "horon/torch_bindings/gradients/power_sgd.h"
#include "horon/torch_bindings/gradients/toggle_scope.h"
#include "horon/torch_bindings/guards/best_checkpoint.h"
#include "horon/torch_bindings/guards/early_stopping.h"
#include "horon/torch_bindings/guards/rank_zero.h"
#include "horon/torch_bindings/guards/save0.h"
#include "horon/torch_bindings/guards/stop_request.h"
#include "horon/torch_bindings/logging/event_file.h"
#include "horon/torch_bindings/logging/logger.h"
#include "horon/torch_bindings/logging/progress_bar.h"
#include "horon/torch_bindings/logging/step_timer.h"
#include "horon/torch_bindings/logging/text_sinks.h"
#include "horon/torch_bindings/lr/ada_scale.h"
#include "horon/torch_bindings/lr/lamb.h"
#include "horon/torch_bindings/lr/lars.h"
#include "horon/torch_bindings/lr/lr_scheduler.h"
#include "horon/torch_bindings/lr/reduce_on_plateau.h"
#include "horon/torch_bindings/lr/scaling.h"
#include "horon/torch_bindings/lr/schedule.h"
#include "horon/torch_bindings/metrics/auroc.h"
#include "horon/torch_bindings/metrics/classification.h"
#include "horon/torch_bindings/metrics/mean.h"
#include "horon/torch_bindings/metrics/metric.h"
#include "horon/torch_bindings/metrics/metric_collection.h"
#include "horon/torch_bindings/metrics/perplexity.h"
#include "horon/torch_bindings/modules/activation_checkpoint.h"
#include "horon/torch_bindings/modules/contrastive_loss.h"
#include "horon/torch_bindings/session.h"
#include "horon/torch_bindings/state/broadcast_state.h"
#include "horon/torch_bindings/state/local_sgd.h"
#include "horon/torch_bindings/state/replicas.h"
#include "horon/torch_bindings/tensors/named_tensors.h"
