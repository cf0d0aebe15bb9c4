if(TARGET oscar::dump)
  oscar_add_program(oscar-dump LIBRARIES oscar::dump oscar::model oscar::h5)
endif()
