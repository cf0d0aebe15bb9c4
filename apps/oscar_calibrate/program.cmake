if(TARGET oscar::calibrate)
  oscar_add_program(oscar-calibrate LIBRARIES oscar::calibrate)
endif()
