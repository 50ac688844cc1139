horon_test(host_kernels_test FILES ops/host_kernels_test.cc)
