if(OSCAR_TORCH)
  oscar_add_program(oscar-verify LIBRARIES oscar::verify oscar::report oscar::model oscar::metrics)
endif()
