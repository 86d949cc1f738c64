# The library as one file (static and shared), header, pkg-config file, program, man page, completions.
include(GNUInstallDirs)

set(RH_OBJECTS)
foreach(room ${RH_ROOMS})
  list(APPEND RH_OBJECTS $<TARGET_OBJECTS:rh_${room}>)
endforeach()
if(RH_CUDA STREQUAL ON)
  list(APPEND RH_OBJECTS $<TARGET_OBJECTS:rh_backend_cuda_hopper>)
endif()
if(NOT YYJSON_FOUND)
  list(APPEND RH_OBJECTS $<TARGET_OBJECTS:rh_yyjson>)
endif()
set(RH_LIBRARIES OpenSSL::Crypto PkgConfig::XXHASH PkgConfig::PCRE2 PkgConfig::UTF8PROC ${CMAKE_DL_LIBS} Threads::Threads m)
if(YYJSON_FOUND)
  list(APPEND RH_LIBRARIES PkgConfig::YYJSON)
  set(RH_PC_YYJSON " yyjson")
endif()
if(RH_CUDA STREQUAL ON)
  list(APPEND RH_LIBRARIES CUDA::cudart_static)
endif()

add_library(rhapsode_static STATIC ${RH_OBJECTS})
add_library(rhapsode_shared SHARED ${RH_OBJECTS})
foreach(kind static shared)
  set_target_properties(rhapsode_${kind} PROPERTIES OUTPUT_NAME rhapsode LINKER_LANGUAGE C
    ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  target_include_directories(rhapsode_${kind} INTERFACE ${CMAKE_SOURCE_DIR}/include)
  target_link_libraries(rhapsode_${kind} PUBLIC ${RH_LIBRARIES})
endforeach()
# Only the public names leave the shared library.
set(RH_EXPORTS ${CMAKE_SOURCE_DIR}/cmake/rhapsode.exports)
set_target_properties(rhapsode_shared PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${RH_EXPORTS})
target_link_options(rhapsode_shared PRIVATE -Wl,--version-script=${RH_EXPORTS})
if(RH_SANITIZE)
  target_link_options(rhapsode_shared PRIVATE -fsanitize=${RH_SANITIZE})
endif()

add_executable(example_hello EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/examples/hello.c)
target_link_libraries(example_hello PRIVATE rh_options rhapsode_static)

# The file says where it lies itself: `cmake --install --prefix` moves everything.
file(RELATIVE_PATH RH_PC_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${CMAKE_SOURCE_DIR}/cmake/rhapsode.pc.in ${CMAKE_BINARY_DIR}/rhapsode.pc @ONLY)
install(TARGETS rhapsode RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS rhapsode_static rhapsode_shared ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${CMAKE_SOURCE_DIR}/include/rhapsode.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_BINARY_DIR}/rhapsode.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(FILES ${CMAKE_SOURCE_DIR}/packaging/rhapsode.service DESTINATION lib/systemd/system)
install(FILES ${CMAKE_SOURCE_DIR}/packaging/grafana.json DESTINATION ${CMAKE_INSTALL_DATADIR}/rhapsode)

# Completions are printed by the program from its own tables.
set(RH_COMPLETIONS ${CMAKE_BINARY_DIR}/completions)
add_custom_command(OUTPUT ${RH_COMPLETIONS}/rhapsode.bash ${RH_COMPLETIONS}/_rhapsode ${RH_COMPLETIONS}/rhapsode.fish
  COMMAND ${CMAKE_COMMAND} -E make_directory ${RH_COMPLETIONS}
  COMMAND rhapsode completion bash --config= > ${RH_COMPLETIONS}/rhapsode.bash
  COMMAND rhapsode completion zsh --config= > ${RH_COMPLETIONS}/_rhapsode
  COMMAND rhapsode completion fish --config= > ${RH_COMPLETIONS}/rhapsode.fish
  DEPENDS rhapsode VERBATIM)
add_custom_target(completions ALL DEPENDS ${RH_COMPLETIONS}/rhapsode.bash ${RH_COMPLETIONS}/_rhapsode ${RH_COMPLETIONS}/rhapsode.fish)
install(FILES ${RH_COMPLETIONS}/rhapsode.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME rhapsode)
install(FILES ${RH_COMPLETIONS}/_rhapsode DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${RH_COMPLETIONS}/rhapsode.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)

find_program(SCDOC scdoc)
if(SCDOC)
  add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/rhapsode.1
    COMMAND ${SCDOC} < ${CMAKE_SOURCE_DIR}/docs/rhapsode.1.scd > ${CMAKE_BINARY_DIR}/rhapsode.1
    DEPENDS ${CMAKE_SOURCE_DIR}/docs/rhapsode.1.scd VERBATIM)
  add_custom_target(manual ALL DEPENDS ${CMAKE_BINARY_DIR}/rhapsode.1)
  install(FILES ${CMAKE_BINARY_DIR}/rhapsode.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
