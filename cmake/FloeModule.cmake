# floe_module(FOLDER [TORCH] [ENGINE] [SEPARATE] USES module... LIBS library...): one static library from all sources in
# src/floe/FOLDER and the folders in it. A module that is part of a larger folder is named by its
# path: observe/sinks is the library floe_observe_sinks. USES names the modules whose headers it
# includes, no fewer and no more; tools/check_modules.py holds the includes to it.
#
# With FLOE_UNITY the sources of a module are compiled as one, so what is private to a source must
# have a name of its own in its module. SEPARATE: not so here, each source by itself.
#
# ENGINE: the module is part of the library floe::engine, and of a build with FLOE_ENGINE_ONLY; the others
# are part of floe::floe (see FloePackage).
function(floe_module folder)
  cmake_parse_arguments(ARG "TORCH;ENGINE;SEPARATE" "" "USES;LIBS" ${ARGN})
  if((ARG_TORCH AND NOT FLOE_WITH_TORCH) OR (FLOE_ENGINE_ONLY AND NOT ARG_ENGINE))
    return()
  endif()
  string(REPLACE "/" "_" name ${folder})
  if(ARG_ENGINE)
    set_property(GLOBAL APPEND PROPERTY FLOE_ENGINE_MODULES floe_${name})
    set_property(GLOBAL APPEND PROPERTY FLOE_ENGINE_LIBS ${ARG_LIBS})
  else()
    set_property(GLOBAL APPEND PROPERTY FLOE_OTHER_MODULES floe_${name})
    set_property(GLOBAL APPEND PROPERTY FLOE_OTHER_LIBS ${ARG_LIBS})
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cc)
  if(sources)
    add_library(floe_${name} STATIC ${sources})
    set(scope PUBLIC)
    target_compile_options(floe_${name} PRIVATE ${FLOE_WARNINGS})
    if(NOT ARG_SEPARATE)
      floe_unity(floe_${name})
    endif()
  else()
    add_library(floe_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(floe_${name} ${scope} ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/include)
  foreach(used ${ARG_USES})
    string(REPLACE "/" "_" used ${used})
    target_link_libraries(floe_${name} ${scope} floe_${used})
  endforeach()
  target_link_libraries(floe_${name} ${scope} ${ARG_LIBS} Threads::Threads)
  if(ARG_TORCH)
    target_link_libraries(floe_${name} ${scope} floe_torch)
    if(sources)
      floe_use_torch_pch(floe_${name})
    endif()
  endif()
endfunction()

# floe_unity(TARGET): with FLOE_UNITY its sources are compiled as one, except those that have definitions of
# their own.
function(floe_unity target)
  if(FLOE_UNITY)
    # A member of a private type: to the compiler such a source looks like a header.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
    # When the folder's list has been read to its end: sources may be added until then.
    cmake_language(EVAL CODE "cmake_language(DEFER CALL floe_write_unity ${target})")
  endif()
endfunction()

# Not CMake's own UNITY_BUILD: that names sources by their whole paths, which then are part of what the compiler
# sees (__FILE__), and ccache would serve no other checkout.
function(floe_write_unity target)
  get_target_property(sources ${target} SOURCES)
  set(lines "")
  set(separate "")
  foreach(source ${sources})
    get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
    if(definitions)
      list(APPEND separate ${source})
      continue()
    endif()
    get_filename_component(source ${source} ABSOLUTE)
    if(source MATCHES "^${PROJECT_SOURCE_DIR}/src/")
      file(RELATIVE_PATH source ${PROJECT_SOURCE_DIR}/src ${source})
    else()
      file(RELATIVE_PATH source ${PROJECT_SOURCE_DIR} ${source})
      target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
    endif()
    string(APPEND lines "#include \"${source}\"\n")
  endforeach()
  set(whole ${CMAKE_CURRENT_BINARY_DIR}/Unity/${target}.cc)
  file(CONFIGURE OUTPUT ${whole} CONTENT "${lines}" @ONLY)  # keeps its time when nothing has changed
  set_target_properties(${target} PROPERTIES SOURCES "${whole};${separate}")
endfunction()

# GCC 12 sees overlapping copies in std::string that are not there, and under sanitizers
# uninitialised members of std::variant.
set(FLOE_WARNINGS -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -Wno-restrict)
if(FLOE_WERROR)
  # What the optimizer of g++ 12 and 13 says about std::string and std::vector is often not so.
  list(APPEND FLOE_WARNINGS -Werror -Wno-error=array-bounds -Wno-error=stringop-overflow
    -Wno-error=stringop-overread -Wno-error=maybe-uninitialized)
endif()
if(FLOE_SANITIZE)
  list(APPEND FLOE_WARNINGS -Wno-maybe-uninitialized)
  add_compile_options(-fsanitize=${FLOE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=${FLOE_SANITIZE})
endif()
