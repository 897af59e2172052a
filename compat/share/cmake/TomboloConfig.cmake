# SPDX-License-Identifier: Apache-2.0
# OpenSHMEM 1.6 for CMake:
#
#   find_package(Tombolo REQUIRED)
#   target_link_libraries(app PRIVATE Tombolo::Tombolo)   # or Tombolo::Static
#
# Tombolo_OSHRUN is the launcher. All paths follow from the place of this file.

include(CMakeFindDependencyMacro)
find_dependency(Threads)

# Without links: where /lib is a link to /usr/lib, what is above both differs.
get_filename_component(_tombolo_prefix "${CMAKE_CURRENT_LIST_DIR}" REALPATH)
get_filename_component(_tombolo_prefix "${_tombolo_prefix}/@UP@" ABSOLUTE)
set(Tombolo_OSHRUN "${_tombolo_prefix}/bin/@OSHRUN@")

if(NOT TARGET Tombolo::Tombolo)
  add_library(Tombolo::Tombolo SHARED IMPORTED)
  set_target_properties(Tombolo::Tombolo PROPERTIES
    IMPORTED_LOCATION "${_tombolo_prefix}/@LIB@/libtombolo.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_tombolo_prefix}/@INCLUDE@")

  add_library(Tombolo::Static STATIC IMPORTED)
  set_target_properties(Tombolo::Static PROPERTIES
    IMPORTED_LOCATION "${_tombolo_prefix}/@LIB@/libtombolo.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_tombolo_prefix}/@INCLUDE@"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;util;rt;m;dl")
endif()

unset(_tombolo_prefix)
