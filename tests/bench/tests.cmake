find_package(Python3 REQUIRED COMPONENTS Interpreter)
if(NOT TARGET horon-bench)
  return()
endif()

horon_test(bench_parts_test
           FILES bench/gloo_place_test.cc bench/options_test.cc bench/report_test.cc
                 bench/statistics_test.cc bench/step_model_test.cc bench/test_data_test.cc
           LIBS horon_bench_parts)

horon_test(gpu_bench_test FILES bench/gpu_bench_test.cc LIBS horon_bench_parts horon_host_gpu
           RANKS 1 3)
horon_label_tests(cuda gpu_bench_test.np1 gpu_bench_test.np3)

set(horon_bench_smoke ${CMAKE_CURRENT_LIST_DIR}/bench_smoke.py)
set(horon_mpirun ${PROJECT_SOURCE_DIR}/tests/support/mpirun_test)

# horon_bench_test(NAME RANKS KIND PROGRAM ARGS...): small sizes; no times are asserted.
function(horon_bench_test name ranks kind program)
  add_test(NAME ${name}.np${ranks}
           COMMAND Python3::Interpreter ${horon_bench_smoke} ${kind}
                   ${horon_mpirun} ${ranks} ${program} ${ARGN})
  set_tests_properties(${name}.np${ranks} PROPERTIES TIMEOUT ${horon_test_limit_s} PROCESSORS 2
                       LABELS mpirun)
endfunction()

set(horon_bench $<TARGET_FILE:horon-bench>)
foreach(ranks 1 2 3)
  horon_bench_test(bench_allreduce ${ranks} table ${horon_bench}
                   -b 1 -e 300K -f 64 -n 3 -w 1 --peer mpi --stats)
endforeach()
horon_bench_test(bench_private_memory 2 table ${horon_bench}
                 -b 5 -e 100K -f 16 -n 2 -w 1 --memory private -d bfloat16 -o avg)
horon_bench_test(bench_group 2 table ${horon_bench} --calling group --tensors 64
                 -b 4 -e 16K -f 64 -n 5 -w 4 --peer mpi)
horon_bench_test(bench_async 3 table ${horon_bench} --calling async --tensors 64
                 -b 4 -e 16K -f 64 -n 5 -w 4)
horon_bench_test(bench_broadcast 3 table ${horon_bench} --collective broadcast -r 2
                 -b 8 -e 100K -f 64 -n 2 -w 1 --peer mpi -d int64)
horon_bench_test(bench_allgather 3 table ${horon_bench} --collective allgather
                 -b 8 -e 100K -f 64 -n 2 -w 1 --peer mpi -d bool)
horon_bench_test(bench_reducescatter 3 table ${horon_bench} --collective reducescatter
                 -b 8 -e 100K -f 64 -n 2 -w 1 --peer mpi -d int32)
horon_bench_test(bench_alltoall 3 table ${horon_bench} --collective alltoall
                 -b 8 -e 100K -f 64 -n 2 -w 1 --peer mpi -d bool)
horon_bench_test(bench_gather 3 table ${horon_bench} --collective gather -r 1
                 -b 8 -e 100K -f 64 -n 2 -w 1 --peer mpi -d int16)
horon_bench_test(bench_scatter 3 table ${horon_bench} --collective scatter -r 2
                 -b 8 -e 100K -f 64 -n 2 -w 1 --peer mpi)
horon_bench_test(bench_barrier 3 table ${horon_bench} --collective barrier
                 -n 3 -w 1 --peer mpi,tuned,gloo)
horon_bench_test(bench_16_bit 2 table ${horon_bench} -o max
                 -b 8 -e 100K -f 64 -n 2 -w 1 --peer mpi,gloo -d bfloat16)
horon_bench_test(bench_16_bit 3 table ${horon_bench} --collective reducescatter --set all
                 -b 8 -e 100K -f 64 -n 2 -w 1 --peer mpi,tuned,gloo -d float16)
add_test(NAME bench_narrow_wire
         COMMAND Python3::Interpreter ${horon_bench_smoke} table
                 ${PROJECT_SOURCE_DIR}/tests/support/mpirun_hosts_test 1+1 ${horon_bench}
                 -b 8 -e 4M -f 1024 -n 2 -w 1 --peer mpi -o avg)
set_tests_properties(bench_narrow_wire PROPERTIES TIMEOUT ${horon_test_limit_s} PROCESSORS 2
                     LABELS mpirun
                     ENVIRONMENT HORON_WIRE_DTYPE=bfloat16)
add_test(NAME bench_int8
         COMMAND Python3::Interpreter ${horon_bench_smoke} table
                 ${PROJECT_SOURCE_DIR}/tests/support/mpirun_hosts_test 1+1+1 ${horon_bench}
                 -b 8 -e 4M -f 1024 -n 2 -w 1 --peer mpi --compression int8)
set_tests_properties(bench_int8 PROPERTIES TIMEOUT ${horon_test_limit_s} PROCESSORS 2 LABELS mpirun)
horon_bench_test(bench_bits 2 table ${horon_bench} -o bxor
                 -b 8 -e 100K -f 64 -n 2 -w 1 --peer mpi -d bool)
horon_bench_test(bench_set 3 table ${horon_bench} --set 0,2 --collective scatter -r 2
                 -b 8 -e 100K -f 64 -n 2 -w 1 --peer mpi,tuned,gloo)
horon_bench_test(bench_tuned 3 table ${horon_bench} --max-seconds 0.01
                 -b 8 -e 300K -f 64 -n 9 -w 1 --peer mpi,tuned,gloo)
horon_bench_test(bench_idle 2 idle ${horon_bench} --idle 0.3)
horon_bench_test(bench_predict 2 predict ${horon_bench} --predict 44.7M --alone-ms 40
                 --network 2,1,0 --rehearse)
foreach(ranks 1 2)
  horon_bench_test(bench_wrong_use ${ranks} refused ${horon_bench})
endforeach()
if(TARGET tensor_call_bench)
  add_test(NAME bench_tensor_call
           COMMAND ${horon_mpirun} 2 $<TARGET_FILE:tensor_call_bench> --iters 3)
  set_tests_properties(bench_tensor_call PROPERTIES TIMEOUT ${horon_test_limit_s} PROCESSORS 2
                       LABELS mpirun)
endif()
if(TARGET training_step_bench)
  horon_bench_test(bench_training_step 1 training $<TARGET_FILE:training_step_bench>
                   --models deep,tiny,cnn --blocks 2 --steps 2 --warmup-steps 1)
  horon_bench_test(bench_training_step 2 training $<TARGET_FILE:training_step_bench>
                   --models deep,tiny,cnn --blocks 2 --steps 2 --warmup-steps 1
                   --shard --local-sgd 3 --power-sgd 2)
  horon_bench_test(bench_autotune 2 autotune $<TARGET_FILE:training_step_bench>
                   --models deep --blocks 2 --steps 30 --warmup-steps 2)
endif()
add_test(NAME bench_compare_test
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/compare_test.py)
find_program(HORON_GNUPLOT gnuplot)
if(HORON_GNUPLOT)
  add_test(NAME bench_plot_test
           COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/plot_test.py)
  add_test(NAME bench_curves_test
           COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/curves_test.py)
endif()
if(TARGET horon-microbench)
  add_test(NAME microbench_smoke
           COMMAND horon-microbench --benchmark_min_time=0.001
                   "--benchmark_filter=/(2|8|1|4096|1048576)(/real_time)?(/threads:[12])?$")
  set_tests_properties(microbench_smoke PROPERTIES TIMEOUT ${horon_test_limit_s} PROCESSORS 2)
endif()

# Speed, in proportion to MPI on the same machine in the same run, with a wide margin. Sanitizers
# slow only one side down.
if(NOT HORON_SANITIZE)
  add_test(NAME bench_cached_allreduce
           COMMAND ${horon_mpirun} 2 ${horon_bench} -b 4 -e 64K -f 8 -n 50 -w 20 --peer mpi
                   --ratio-max 100)
  add_test(NAME bench_rest
           COMMAND ${horon_mpirun} 2 ${horon_bench} --idle 3 --idle-percent-max 1)
  set_tests_properties(bench_cached_allreduce bench_rest
                       PROPERTIES TIMEOUT ${horon_test_limit_s} RUN_SERIAL ON
                       LABELS "mpirun;performance")
endif()
