# Without LibTorch it verifies on traces; --model says that it cannot.
if(TARGET oscar::verify)
  oscar_add_program(oscar-verify LIBRARIES oscar::bench oscar::verify oscar::report oscar::metrics)
endif()
