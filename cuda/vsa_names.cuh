// Names of a variant's kernel and of its geometry constant, from the macros that it is compiled with:
// CAKE_FAMILY (by the source), CAKE_BLOCK, CAKE_HEAD_DIM, CAKE_BF16.
#pragma once

#if CAKE_BF16
#define CAKE_TYPE bf16
#else
#define CAKE_TYPE fp16
#endif
#define CAKE_PASTE(family, block, head_dim, type, suffix) \
  cake_vsa_##family##_r##block##_d##head_dim##_##type##suffix
#define CAKE_EXPAND(family, block, head_dim, type, suffix) \
  CAKE_PASTE(family, block, head_dim, type, suffix)
#define CAKE_KERNEL CAKE_EXPAND(CAKE_FAMILY, CAKE_BLOCK, CAKE_HEAD_DIM, CAKE_TYPE, )
// {threads, dynamic shared bytes}: the build tool reads them from the PTX into the manifest.
#define CAKE_GEOMETRY CAKE_EXPAND(CAKE_FAMILY, CAKE_BLOCK, CAKE_HEAD_DIM, CAKE_TYPE, _geometry)
