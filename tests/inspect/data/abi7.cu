namespace old {

template <class T> __global__ void __launch_bounds__(192) scale(T *x, T f, int n) {
  __shared__ T s[64];
  s[threadIdx.x % 64] = x[threadIdx.x] * f;
  __syncthreads();
  T a[32];
  for (int i = 0; i < 32; i++) a[i] = s[(i * n) % 64];
  for (int i = 0; i < n; i++) x[i] = a[(int)x[i] & 31] + s[i % 64];
}
template __global__ void scale<float>(float *, float, int);
template __global__ void scale<double>(double *, double, int);

} // namespace old
