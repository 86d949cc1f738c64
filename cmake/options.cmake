# Compiler options of everything that is ours.  No machine-specific code, no fast-math; fused multiply-add only where it is written.
add_library(rh_options INTERFACE)
set(RH_C_OPTIONS -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla
  -ffp-contract=off -fno-math-errno -fno-strict-aliasing -g)
target_compile_options(rh_options INTERFACE "$<$<COMPILE_LANGUAGE:C>:${RH_C_OPTIONS}>")
target_compile_definitions(rh_options INTERFACE _GNU_SOURCE)
set(CMAKE_C_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_C_FLAGS_DEBUG "-O1")
if(RH_SANITIZE)
  target_compile_options(rh_options INTERFACE -fsanitize=${RH_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1) # a report names lines
  target_link_options(rh_options INTERFACE -fsanitize=${RH_SANITIZE})
endif()
if(RH_FUZZ)
  target_compile_options(rh_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
