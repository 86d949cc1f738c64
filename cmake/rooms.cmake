# rh_room(NAME SOURCES a.c b.c DEPS rh_base ...): the static library of one room.
function(rh_room name)
  cmake_parse_arguments(R "" "" "SOURCES;DEPS" ${ARGN})
  add_library(rh_${name} STATIC ${R_SOURCES})
  target_include_directories(rh_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  target_link_libraries(rh_${name} PRIVATE rh_options PUBLIC ${R_DEPS})
endfunction()

# rh_isa(FILE flags...): instruction-set flags of one kernel file, kept apart from every other variable.
function(rh_isa file)
  set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${ARGN}")
endfunction()
