if(TARGET oscar::inspect)
  oscar_add_program(oscar-zoo LIBRARIES oscar::inspect fmt::fmt)
endif()
