//! Graphs of the CUDA driver: commands that are launched in one call.

use std::ffi::c_void;
use std::ptr::{null, null_mut, with_exposed_provenance_mut};
use std::sync::Arc;

use bfc_core::Stream;
use cudarc::driver::sys::{
    self, CUDA_KERNEL_NODE_PARAMS, CUfunction, CUgraph, CUgraphExec, CUgraphInstantiate_flags, CUgraphNode,
    CUresult, CUstreamCaptureMode,
};
use cudarc::driver::{DriverError, result};

use crate::compute::{ComputeError, call_device};
use crate::driver::{CudaDriver, capture_exclusively, require};
use crate::kernels::{BLOCK, Job, JobTable};

/// The driver functions that graphs need; CUDA 12 has them.
const FUNCTIONS: [&str; 10] = [
    "cuGraphCreate",
    "cuGraphAddKernelNode_v2",
    "cuGraphAddChildGraphNode",
    "cuGraphInstantiateWithFlags",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
];

/// How often a capture is tried.
const CAPTURE_ATTEMPTS: u32 = 4;

/// Describes a kernel node. The result must not outlive `parameters`.
fn kernel_node(
    function: CUfunction,
    blocks: u32,
    parameters: &mut [*mut c_void; 2],
) -> CUDA_KERNEL_NODE_PARAMS {
    CUDA_KERNEL_NODE_PARAMS {
        func: function,
        gridDimX: blocks,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: BLOCK as u32,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: parameters.as_mut_ptr(),
        extra: null_mut(),
        kern: null_mut(),
        ctx: null_mut(),
    }
}

/// The addresses of a job and its table as kernel arguments. The driver does not read the second one for kernels without
/// a table.
pub(crate) fn arguments(job: &Job, table: Option<&JobTable>) -> [*mut c_void; 2] {
    let table = table.map_or(null_mut(), |table| std::ptr::from_ref(table).cast_mut().cast());
    [std::ptr::from_ref(job).cast_mut().cast(), table]
}

/// A graph under construction, a chain of nodes.
pub(crate) struct GraphBuilder {
    driver: Arc<CudaDriver>,
    graph: CUgraph,
    last: CUgraphNode,
}

impl GraphBuilder {
    /// Creates an empty graph.
    ///
    /// # Errors
    /// [`ComputeError::Unavailable`] if the driver is too old for graphs; else what it says.
    pub(crate) fn new(driver: &Arc<CudaDriver>) -> Result<Self, ComputeError> {
        require(&FUNCTIONS)?;
        let mut graph = null_mut();
        // SAFETY: the driver writes one handle.
        call_device(driver, "cuGraphCreate", || unsafe { sys::cuGraphCreate(&raw mut graph, 0) }.result())?;
        Ok(Self { driver: Arc::clone(driver), graph, last: null_mut() })
    }

    /// Captures the work that `work` submits to this stream. `work` must not use other streams or wait. The stream
    /// executes none of it. Other code of the process may interrupt a capture, for example by a wait for the device, so
    /// that this tries a few times.
    pub(crate) fn captured(
        driver: &Arc<CudaDriver>,
        stream: &Stream,
        work: impl Fn() -> Result<(), ComputeError>,
    ) -> Result<Self, ComputeError> {
        for _ in 0..CAPTURE_ATTEMPTS {
            if let Some(graph) = capture_exclusively(|| Self::capture_once(driver, stream, &work))? {
                return Ok(graph);
            }
        }
        Err(ComputeError::Device {
            call: "cuStreamEndCapture",
            reason: format!("other work of the process interrupted {CAPTURE_ATTEMPTS} captures"),
        })
    }

    /// As [`captured`](Self::captured). Returns `None` if the capture was interrupted.
    fn capture_once(
        driver: &Arc<CudaDriver>,
        stream: &Stream,
        work: impl Fn() -> Result<(), ComputeError>,
    ) -> Result<Option<Self>, ComputeError> {
        let raw = with_exposed_provenance_mut(stream.handle().0 as usize);
        // Relaxed, so that libraries may load their kernels meanwhile.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is live.
        call_device(driver, "cuStreamBeginCapture", || unsafe { result::stream::begin_capture(raw, mode) })?;
        let submitted = work();
        // End the capture even after an error.
        let ended = call_device(driver, "cuStreamEndCapture", || {
            // SAFETY: the stream is live and captures.
            match unsafe { result::stream::end_capture(raw) } {
                Err(DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)) => Ok(None),
                ended => ended.map(Some),
            }
        });
        let captured = ended?.map(|graph| Self { driver: Arc::clone(driver), graph, last: null_mut() });
        // An interrupted capture makes the work fail too.
        if captured.is_some() { submitted.map(|()| captured) } else { Ok(None) }
    }

    /// The dependency on the last node.
    fn dependencies(&self) -> (*const CUgraphNode, usize) {
        if self.last.is_null() { (null(), 0) } else { (&raw const self.last, 1) }
    }

    /// Adds a kernel with this job and table.
    ///
    /// # Safety
    /// The kernel takes one job, and a table if there is one; its module stays loaded.
    pub(crate) unsafe fn add_kernel(
        &mut self,
        function: CUfunction,
        blocks: u32,
        (job, table): (&Job, Option<&JobTable>),
    ) -> Result<GraphNode, ComputeError> {
        let (mut node, (after, count)) = (null_mut(), self.dependencies());
        let mut arguments = arguments(job, table);
        let kernel = kernel_node(function, blocks, &mut arguments);
        call_device(&self.driver, "cuGraphAddKernelNode", || {
            // SAFETY: this builder owns the graph and its last node; the driver copies the arguments and writes one handle.
            unsafe {
                sys::cuGraphAddKernelNode_v2(&raw mut node, self.graph, after, count, &raw const kernel)
            }
            .result()
        })?;
        self.last = node;
        Ok(GraphNode(node.expose_provenance()))
    }

    /// Adds another graph as a node.
    pub(crate) fn add_child_graph(&mut self, other: &Self) -> Result<GraphNode, ComputeError> {
        let (mut node, (after, count)) = (null_mut(), self.dependencies());
        call_device(&self.driver, "cuGraphAddChildGraphNode", || {
            // SAFETY: both builders own their graphs; the driver copies the other one and writes one handle.
            unsafe { sys::cuGraphAddChildGraphNode(&raw mut node, self.graph, after, count, other.graph) }
                .result()
        })?;
        self.last = node;
        Ok(GraphNode(node.expose_provenance()))
    }

    /// Makes the graph ready to launch.
    pub(crate) fn finish(self) -> Result<CudaGraph, ComputeError> {
        let flags = CUgraphInstantiate_flags(0);
        let executable = call_device(&self.driver, "cuGraphInstantiate", || {
            // SAFETY: this builder owns the graph.
            unsafe { result::graph::instantiate(self.graph, flags) }
        })?;
        Ok(CudaGraph {
            driver: Arc::clone(&self.driver),
            executable: executable.expose_provenance(),
            _builder: self,
        })
    }
}

impl Drop for GraphBuilder {
    fn drop(&mut self) {
        // SAFETY: this builder owns the graph, which is not used again.
        let _ = call_device(&self.driver, "cuGraphDestroy", || unsafe { result::graph::destroy(self.graph) });
    }
}

/// A node of a graph.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GraphNode(usize);

/// A graph that can be launched.
pub(crate) struct CudaGraph {
    driver: Arc<CudaDriver>,
    executable: usize,
    /// Owns the nodes that updates refer to.
    _builder: GraphBuilder,
}

// SAFETY: only the thread that has the value uses the driver's handles.
unsafe impl Send for GraphBuilder {}

impl CudaGraph {
    fn raw(&self) -> CUgraphExec {
        with_exposed_provenance_mut(self.executable)
    }

    /// Updates the arguments of a kernel node, from the next launch on.
    ///
    /// # Safety
    /// The node belongs to this graph and to this kernel.
    pub(crate) unsafe fn update_kernel(
        &mut self,
        GraphNode(node): GraphNode,
        function: CUfunction,
        blocks: u32,
        (job, table): (&Job, Option<&JobTable>),
    ) -> Result<(), ComputeError> {
        let mut arguments = arguments(job, table);
        let kernel = kernel_node(function, blocks, &mut arguments);
        call_device(&self.driver, "cuGraphExecKernelNodeSetParams", || {
            let node = with_exposed_provenance_mut(node);
            // SAFETY: the graph has the node, as the caller says; the driver copies the arguments.
            unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.raw(), node, &raw const kernel) }.result()
        })
    }

    /// Launches the graph on a stream.
    ///
    /// # Safety
    /// As for each of its commands.
    pub(crate) unsafe fn launch(&self, stream: &Stream) -> Result<(), ComputeError> {
        let stream = with_exposed_provenance_mut(stream.handle().0 as usize);
        // SAFETY: the graph and the stream are live; the caller vouches for the rest.
        call_device(&self.driver, "cuGraphLaunch", || unsafe { result::graph::launch(self.raw(), stream) })
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        // SAFETY: this value owns the graph; a launched graph continues.
        let _ = call_device(&self.driver, "cuGraphExecDestroy", || unsafe {
            result::graph::exec_destroy(self.raw())
        });
    }
}
