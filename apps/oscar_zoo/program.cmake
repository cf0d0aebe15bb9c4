oscar_add_program(oscar-zoo LIBRARIES oscar::inspect fmt::fmt)
