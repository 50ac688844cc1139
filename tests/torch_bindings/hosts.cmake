# Ranks of several hosts, as far as Horon can tell: shared memory among some of them, MPI between.
foreach(run torch_random_program_test:2+2 torch_collectives_test:2+2 torch_reducer_random_test:2+1
        torch_recv_from_any_test:2+1 torch_reducer_traps_test:2+1 torch_backward_ends_test:2+1
        torch_process_set_test:2+1 torch_process_set_test:1+1+1
        torch_session_test:2+2 torch_optimizer_training_test:2+1 torch_shard_gradients_test:2+1
        torch_reducer_options_test:2+1 torch_reducer_scopes_test:2+1 torch_reducer_sparse_test:2+1
        torch_reducer_join_test:2+1 torch_plain_rounds_test:2+1 torch_replica_check_test:2+1
        torch_backward_test:2+1 torch_compressed_gradients_test:2+1 torch_int8_gradients_test:2+1
        torch_int8_gradients_test:1+1+1 torch_adasum_optimizer_test:2+1
        torch_sharded_state_test:2+1 torch_complex_gradients_test:2+1 torch_power_sgd_test:2+1
        torch_bucket_order_test:2+1 torch_local_sgd_test:2+1 torch_autotune_pieces_test:2+1)
  string(REGEX MATCH "(.*):(.*)" run ${run})
  set(program ${CMAKE_MATCH_1})
  set(layout ${CMAKE_MATCH_2})
  string(REPLACE "+" "_" hosts ${layout})
  torch_run(${program} hosts_${hosts} ${layout} LAUNCHER ${horon_mpirun_hosts})
endforeach()
torch_test_without_gpus(torch_session_test.hosts_2_2)
torch_run(torch_int8_gradients_test mpi_2_1 2+1 LAUNCHER ${horon_mpirun_hosts}
          ENVIRONMENT HORON_ALLREDUCE=mpi)
# The same hosts with 16 bits between them. But for the first file, all that is reduced is short,
# and so exact: what the reducers tell each other must not be rounded either.
foreach(program torch_narrow_wire_test torch_plain_rounds_test torch_replica_check_test)
  torch_run(${program} narrow_hosts_2_1 2+1 LAUNCHER ${horon_mpirun_hosts}
            ENVIRONMENT HORON_WIRE_DTYPE=bfloat16)
endforeach()
