# Installs the programs that this configuration builds.
if(OSCAR_INSTALL)
  include(GNUInstallDirs)
  get_property(programs GLOBAL PROPERTY OSCAR_PROGRAMS)
  if(programs)
    install(TARGETS ${programs} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  endif()
  install(FILES LICENSE README.md DESTINATION "${CMAKE_INSTALL_DOCDIR}")
endif()
