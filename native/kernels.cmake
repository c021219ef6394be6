# A static library whose sources PREFIX_scalar.cpp, PREFIX_avx2.cpp and PREFIX_avx512.cpp have the same kernels, each
# compiled with the flags of its instruction set, and whose other SOURCES are baseline code.
#
# -O3 in every configuration: without it, the kernels are not vectorised well enough. Sanitizer builds use -O1, which
# has the same loads and stores and compiles in half the time.
function(hocket_add_kernels name)
  cmake_parse_arguments(PARSE_ARGV 1 KERNELS "" "PREFIX" "SOURCES;AVX2;AVX512;OPTIONS")
  add_library(${name} STATIC ${KERNELS_SOURCES} ${KERNELS_PREFIX}_scalar.cpp)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    target_sources(${name} PRIVATE ${KERNELS_PREFIX}_avx2.cpp ${KERNELS_PREFIX}_avx512.cpp)
    set_source_files_properties(${KERNELS_PREFIX}_avx2.cpp PROPERTIES COMPILE_OPTIONS "${KERNELS_AVX2}")
    set_source_files_properties(${KERNELS_PREFIX}_avx512.cpp PROPERTIES COMPILE_OPTIONS "${KERNELS_AVX512}")
  endif()
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/native)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_compile_options(${name} PRIVATE
    ${HOCKET_WARNINGS} $<IF:$<BOOL:${HOCKET_SANITIZE}>,-O1,-O3> ${KERNELS_OPTIONS})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endfunction()
