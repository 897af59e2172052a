# SPDX-License-Identifier: Apache-2.0
# Versions are compatible as semantic versioning says; before 1.0 each minor version stands alone.
set(PACKAGE_VERSION "@VERSION@")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" _tombolo_series "${PACKAGE_VERSION}")
string(REGEX REPLACE "^([1-9][0-9]*)\\..*" "\\1" _tombolo_series "${_tombolo_series}")
if(PACKAGE_FIND_VERSION VERSION_LESS_EQUAL PACKAGE_VERSION
   AND "${PACKAGE_FIND_VERSION}." MATCHES "^${_tombolo_series}\\.")
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
