# horon_torch_program(NAME): for programs that include torch/torch.h, which takes longer to compile
# than the program itself.
#
# With HORON_BUILT_ONCE that header is precompiled once for all of these programs, and each then
# takes half its time. Not otherwise: the result takes 0.7 GB, and ccache keeps nothing that was
# compiled with it. It works only where the options are the same, so they are set here.
function(horon_torch_program name)
  if(HORON_SANITIZE)
    # The libraries are compiled with all sanitizers; here they would take 2.5 times as long.
    target_compile_options(${name} PRIVATE -O0 -fno-sanitize=undefined)
  elseif(HORON_BUILT_ONCE)
    target_compile_options(${name} PRIVATE -O0)
  endif()
  if(NOT HORON_BUILT_ONCE OR name STREQUAL "horon_torch_headers")
    return()
  endif()
  if(NOT TARGET horon_torch_headers)
    set(source ${PROJECT_BINARY_DIR}/horon_torch_headers.cc)
    file(WRITE ${source} "int main() {}\n")
    add_executable(horon_torch_headers EXCLUDE_FROM_ALL ${source})
    horon_target(horon_torch_headers)
    horon_torch_program(horon_torch_headers)
    target_link_libraries(horon_torch_headers PRIVATE horon_libtorch)
    target_precompile_headers(horon_torch_headers PRIVATE <torch/torch.h>)
  endif()
  target_precompile_headers(${name} REUSE_FROM horon_torch_headers)
endfunction()
