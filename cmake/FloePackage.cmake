# What others link: floe::engine and floe::floe, one archive each, in a project that adds this folder to
# itself and, after cmake --install, by find_package(floe).
#
# The components of an installation: `engine` (libfloe_engine.a, its headers, the CMake files) and `floe` (the
# program, its configurations and libfloe.a). A header is public when it stands here; each compiles with
# the others and LibTorch alone (tests/tools/test_package.py).
set(FLOE_ENGINE_HEADERS
  engine.h
  checkpoint/checkpoints.h
  comm/group.h
  comm/rendezvous.h
  comm/world.h
  core/bytes.h
  core/dtype.h
  core/error.h
  core/log.h
  core/str.h
  io/tensors/open_tensors.h
  io/tensors/tensor_source.h
  nn/activations/checkpoint.h
  nn/boundary.h
  nn/call.h
  nn/fused.h
  nn/init.h
  nn/layers.h
  nn/module.h
  optim/ema.h
  optim/lr_schedule.h
  optim/optimizer.h
  optim/optimizers/adamw.h
  optim/optimizers/lion.h
  optim/optimizers/sgd.h
  shard/bytes.h
  shard/engine.h
  shard/observer.h
  shard/options.h
  shard/slice_owner.h
  shard/states.h
  shard/strategy.h)
set(FLOE_OTHER_HEADERS
  cli/command.h)

include(GNUInstallDirs)

# floe_merged(TARGET NAME KIND): the modules of that kind (ENGINE, OTHER) as one archive, floe::NAME.
function(floe_merged target name kind)
  get_property(modules GLOBAL PROPERTY FLOE_${kind}_MODULES)
  if(kind STREQUAL ENGINE AND FLOE_CUDA)
    list(APPEND modules floe_cuda_kernels)
  endif()
  set(objects "")
  foreach(module ${modules})
    get_target_property(type ${module} TYPE)
    if(type STREQUAL "STATIC_LIBRARY")
      list(APPEND objects $<TARGET_OBJECTS:${module}>)
    endif()
  endforeach()
  add_library(${target} STATIC ${objects})
  add_library(floe::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} LINKER_LANGUAGE CXX)
  target_compile_features(${target} INTERFACE cxx_std_20)
  target_include_directories(${target} INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endfunction()

# Headers only: nobody links them.
function(floe_linked_libs kind result)
  get_property(libs GLOBAL PROPERTY FLOE_${kind}_LIBS)
  list(REMOVE_DUPLICATES libs)
  list(REMOVE_ITEM libs nlohmann_json::nlohmann_json)
  set(${result} ${libs} PARENT_SCOPE)
endfunction()

floe_linked_libs(ENGINE FLOE_ENGINE_LINKS)
floe_merged(floe_engine engine ENGINE)
if(NOT PROJECT_IS_TOP_LEVEL)
  set_target_properties(floe_engine PROPERTIES EXCLUDE_FROM_ALL ON)
endif()
target_link_libraries(floe_engine INTERFACE
  ${FLOE_ENGINE_LINKS} Threads::Threads $<BUILD_INTERFACE:floe_torch> $<INSTALL_INTERFACE:floe::torch>)
if(NOT FLOE_ENGINE_ONLY)
  floe_linked_libs(OTHER FLOE_OTHER_LINKS)
  floe_merged(floe_floe floe OTHER)
  if(NOT PROJECT_IS_TOP_LEVEL)
    set_target_properties(floe_floe PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  set_target_properties(floe_floe PROPERTIES OUTPUT_NAME floe)
  # By its name alone: the target yaml-cpp is of whoever looks for it.
  list(TRANSFORM FLOE_OTHER_LINKS REPLACE "^yaml-cpp$" "-lyaml-cpp")
  target_link_libraries(floe_floe INTERFACE floe_engine ${FLOE_OTHER_LINKS})
endif()

if(NOT FLOE_INSTALL)
  return()
endif()

include(CMakePackageConfigHelpers)
set(FLOE_PACKAGE_FOLDER ${CMAKE_INSTALL_LIBDIR}/cmake/floe)

function(floe_install_headers component)
  foreach(header ${ARGN})
    get_filename_component(folder ${header} DIRECTORY)
    install(FILES ${PROJECT_SOURCE_DIR}/src/floe/${header} COMPONENT ${component}
      DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/floe/${folder})
  endforeach()
endfunction()

floe_install_headers(engine ${FLOE_ENGINE_HEADERS})
install(FILES ${PROJECT_BINARY_DIR}/include/floe/version.h COMPONENT engine
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/floe)
install(TARGETS floe_engine EXPORT floe_engine_targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT engine)
install(EXPORT floe_engine_targets NAMESPACE floe:: FILE floeEngineTargets.cmake COMPONENT engine
  DESTINATION ${FLOE_PACKAGE_FOLDER})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/floeConfig.cmake.in ${PROJECT_BINARY_DIR}/floeConfig.cmake
  INSTALL_DESTINATION ${FLOE_PACKAGE_FOLDER} NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# Before 1.0 a minor version may change what is public.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/floeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/floeConfig.cmake ${PROJECT_BINARY_DIR}/floeConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/FloeTorchTarget.cmake COMPONENT engine DESTINATION ${FLOE_PACKAGE_FOLDER})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE COMPONENT engine DESTINATION ${CMAKE_INSTALL_DOCDIR})

if(NOT FLOE_ENGINE_ONLY)
  floe_install_headers(floe ${FLOE_OTHER_HEADERS})
  install(TARGETS floe_floe EXPORT floe_targets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT floe)
  set_target_properties(floe PROPERTIES EXPORT_NAME program)
  install(TARGETS floe EXPORT floe_targets RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT floe)
  install(EXPORT floe_targets NAMESPACE floe:: FILE floeTargets.cmake COMPONENT floe
    DESTINATION ${FLOE_PACKAGE_FOLDER})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/configs/ COMPONENT floe
    DESTINATION ${CMAKE_INSTALL_DATADIR}/floe/configs)
endif()
