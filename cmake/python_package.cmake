# The compiled parts of the Python package: the install component "python", which scikit-build-core packs into the wheel
# beside python/superoffload (pyproject.toml). A plain `cmake --install` leaves them out.
set(SO_BUILT "" CACHE PATH "A build folder whose program the Python package takes; empty: this build's")
if(SO_BUILT)
  if(NOT EXISTS ${SO_BUILT}/bin/superoffload)
    message(FATAL_ERROR "SO_BUILT: ${SO_BUILT}/bin/superoffload is not there; build it, or leave SO_BUILT out")
  endif()
  # A test makes a wheel of a build this way, without compiling all of it again.
  add_custom_target(superoffload)
  install(PROGRAMS ${SO_BUILT}/bin/superoffload DESTINATION superoffload/bin COMPONENT python EXCLUDE_FROM_ALL)
endif()

# so_python_package(): called where the program is declared.
function(so_python_package)
  install(TARGETS superoffload RUNTIME DESTINATION superoffload/bin COMPONENT python EXCLUDE_FROM_ALL)
endfunction()
