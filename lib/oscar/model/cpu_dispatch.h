// Loops built for several instruction sets and chosen when the program starts.
#pragma once

namespace oscar {

// OSCAR_CPU_VARIANTS(Name, (parameters), (body for AVX-512), (body for AVX2 + FMA), (body for all))
// defines `Name(parameters)` in an anonymous namespace of a source file. The bodies are single
// statements, usually a call of an always_inline template. Other processors than x86-64 build the
// last body only, with whatever instructions the compiler's target has.
#if defined(__x86_64__) && defined(__GNUC__)

template <typename Function>
Function* ChooseForCpu(Function* avx512, Function* avx2, Function* any) {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2;
  return any;
}

#define OSCAR_CPU_STRIP(...) __VA_ARGS__
#define OSCAR_CPU_VARIANTS(name, parameters, body_avx512, body_avx2, body_any)                  \
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]] void name##Avx512 parameters { \
    OSCAR_CPU_STRIP body_avx512;                                                                \
  }                                                                                             \
  [[gnu::target("avx2,fma")]] void name##Avx2 parameters { OSCAR_CPU_STRIP body_avx2; }         \
  void name##Any parameters { OSCAR_CPU_STRIP body_any; }                                       \
  void(*const name) parameters = ChooseForCpu(&name##Avx512, &name##Avx2, &name##Any);

#else

#define OSCAR_CPU_STRIP(...) __VA_ARGS__
#define OSCAR_CPU_VARIANTS(name, parameters, body_avx512, body_avx2, body_any) \
  void name parameters { OSCAR_CPU_STRIP body_any; }

#endif

}  // namespace oscar
