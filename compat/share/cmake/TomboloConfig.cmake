# OpenSHMEM 1.6 for CMake:
#
#   find_package(Tombolo REQUIRED)
#   target_link_libraries(app PRIVATE Tombolo::Tombolo)   # or Tombolo::Static
#
# Tombolo_OSHRUN is the launcher. All paths follow from the place of this file.

include(CMakeFindDependencyMacro)
find_dependency(Threads)

get_filename_component(_tombolo_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(Tombolo_OSHRUN "${_tombolo_prefix}/bin/oshrun")

if(NOT TARGET Tombolo::Tombolo)
  add_library(Tombolo::Tombolo SHARED IMPORTED)
  set_target_properties(Tombolo::Tombolo PROPERTIES
    IMPORTED_LOCATION "${_tombolo_prefix}/lib/libtombolo.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_tombolo_prefix}/include")

  add_library(Tombolo::Static STATIC IMPORTED)
  set_target_properties(Tombolo::Static PROPERTIES
    IMPORTED_LOCATION "${_tombolo_prefix}/lib/libtombolo.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_tombolo_prefix}/include"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;util;rt;m;dl")
endif()

unset(_tombolo_prefix)
