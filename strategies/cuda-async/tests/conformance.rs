//! The rules every strategy keeps.

use allocator_core::Configure;
use strategy_cuda_async::CudaAsync;

allocator_core::conformance!(|info| CudaAsync::new(Default::default(), info).unwrap());
