// Kernels that differ in what `cakert inspect` reports; tests/helpers/cuda_tools.py compiles them.
#include <cstdio>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CLUSTER(...) __cluster_dims__(__VA_ARGS__)
#define LARGEST_CLUSTER(n) , n
#define BLOCK(...) __block_size__(__VA_ARGS__)
#else
#define CLUSTER(...)
#define LARGEST_CLUSTER(n)
#define BLOCK(...)
#endif

namespace shapes {
template <class T, int N> struct Row {
  T values[N];
  char tail;
};
struct Large {
  char bytes[6000];
};
} // namespace shapes

__constant__ float table[40];
__device__ int counters[10];
__device__ int started = 7;

extern "C" __global__ void plain(float *x, float f, int n) {
  int i = threadIdx.x;
  if (i < n) x[i] *= f + table[i % 40];
}

__global__ void no_parameters() { counters[threadIdx.x % 10] = started; }

template <class T> __global__ void __launch_bounds__(256, 2) templated(T *x, shapes::Row<T, 3> row, int k) {
  __shared__ T shared[100];
  shared[threadIdx.x % 100] = row.values[k % 3];
  __syncthreads();
  x[threadIdx.x] = shared[(threadIdx.x + 1) % 100];
}
template __global__ void templated<float>(float *, shapes::Row<float, 3>, int);
template __global__ void templated<double>(double *, shapes::Row<double, 3>, int);
template __global__ void templated<char>(char *, shapes::Row<char, 3>, int);

__global__ void large_parameters(shapes::Large large, int k, shapes::Row<short, 5> row) {
  counters[0] = large.bytes[k] + row.values[k % 5];
}

__global__ void mixed_parameters(double *x, short s, char c, unsigned long long q, const __grid_constant__ int k) {
  for (int i = 0; i < s; i++) x[i] = pow(x[i], x[i + 1]) + c + q + k;
}

__global__ void CLUSTER(2, 1, 1) in_clusters(float *x) { x[blockIdx.x] = 1; }

__global__ void __launch_bounds__(128, 1 LARGEST_CLUSTER(8)) small_clusters(int *x) { *x = 1; }

__global__ void BLOCK((64, 2, 1), (2, 2, 1)) fixed_block(float *x) { x[blockIdx.x] = 1; }

__global__ void __launch_bounds__(1024) full_block(int *x) { x[threadIdx.x] = 1; }

__global__ void __maxnreg__(32) few_registers(int *x) { x[0] = printf("%d\n", x[1]); }

__global__ void local_array(int *x, int n) {
  int a[100], sum = 0;
  for (int i = 0; i < 100; i++) a[i] = x[i];
  for (int i = 0; i < n; i++) sum += a[x[i + 3] % 100];
  *x = sum + counters[n % 10];
}

__device__ __noinline__ int leaf(int *v, int n) {
  volatile int a[20];
  int sum = 0;
  for (int i = 0; i < 20; i++) a[i] = v[i] * n;
  for (int i = 0; i < n; i++) sum += a[i];
  return sum;
}

__global__ void calls(int *x) {
  volatile int b[7];
  for (int i = 0; i < 7; i++) b[i] = x[i];
  x[0] = leaf(x, x[1]) + b[x[3]];
}

__device__ __noinline__ int recursive(int n) { return n < 2 ? n : recursive(n - 1) * recursive(n - 2) + 1; }

__global__ void recurses(int *x) { *x = recursive(*x); }

__global__ void named_barriers(int *x) {
  extern __shared__ int dynamic[];
  asm volatile("bar.sync 3, 64;");
  dynamic[x[1]] = x[0];
  asm volatile("bar.sync 7, 64;");
  x[2] = dynamic[3];
}
