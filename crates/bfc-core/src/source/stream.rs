//! Streams and events of a device: owned handles over a [`Driver`].

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::driver::{Driver, EventHandle, MemoryCopy, StreamHandle};
use super::error::SourceError;

/// A stream of a device, which runs its work in order.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::sim::SimDevice;
/// use bfc_core::{Bytes, StreamEvent, Stream};
///
/// let device = Arc::new(SimDevice::new(Bytes::mib(64)));
/// let (compute, copies) = (Stream::new(device.clone())?, Stream::new(device)?);
/// // What `compute` is given from now on comes after what `copies` was given so far.
/// let event = StreamEvent::new(&copies)?;
/// compute.wait(&event)?;
/// event.synchronize()?;
/// # Ok::<(), bfc_core::SourceError>(())
/// ```
pub struct Stream {
    driver: Arc<dyn Driver>,
    handle: StreamHandle,
    /// The owner of a stream that this value does not destroy.
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

impl Stream {
    /// Creates a stream of the device behind `driver`.
    ///
    /// # Errors
    /// Fails with the driver's error.
    pub fn new(driver: Arc<dyn Driver>) -> Result<Arc<Self>, SourceError> {
        let handle = driver.create_stream()?;
        Ok(Arc::new(Self { driver, handle, owner: None }))
    }

    /// Wraps a stream of another library, such as the stream that a program computes on. Dropping the value drops `owner`
    /// and does not destroy the stream.
    ///
    /// # Safety
    /// `handle` is a stream of the device behind `driver`, and stays valid while `owner` lives.
    #[must_use]
    pub unsafe fn from_raw(
        driver: Arc<dyn Driver>,
        handle: StreamHandle,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Arc<Self> {
        Arc::new(Self { driver, handle, owner: Some(owner) })
    }

    /// Returns the device's driver.
    #[must_use]
    pub const fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Returns the driver's handle, valid while the stream lives.
    #[must_use]
    pub const fn handle(&self) -> StreamHandle {
        self.handle
    }

    /// Makes work submitted to the stream from now on wait for the event. The host does not wait.
    ///
    /// # Errors
    /// Fails with the driver's error; the stream then does not wait.
    pub fn wait(&self, event: &StreamEvent) -> Result<(), SourceError> {
        // SAFETY: both handles live as long as their values do.
        unsafe { self.driver.wait(self.handle, event.handle) }
    }

    /// Submits a copy to the stream.
    ///
    /// # Errors
    /// Fails with the driver's error; nothing is copied then.
    ///
    /// # Safety
    /// See [`Driver::copy`]; the stream itself is valid.
    pub unsafe fn copy(&self, copy: MemoryCopy) -> Result<(), SourceError> {
        // SAFETY: the stream lives, and the caller guarantees the rest.
        unsafe { self.driver.copy(copy, self.handle) }
    }

    /// Waits until all submitted work has ended.
    ///
    /// # Errors
    /// Fails with the driver's error.
    pub fn synchronize(self: &Arc<Self>) -> Result<(), SourceError> {
        StreamEvent::new(self)?.synchronize()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owner.is_some() {
            return;
        }
        // SAFETY: this value owns the handle, and no other code uses it.
        unsafe { self.driver.destroy_stream(self.handle) };
    }
}

impl PartialEq for Stream {
    /// Whether both are the same stream of the same device.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.driver, &other.driver) && self.handle == other.handle
    }
}

impl Eq for Stream {}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({} of {})", self.handle.0, self.driver.name())
    }
}

/// A point in a stream, complete when all work submitted before it has ended.
pub struct StreamEvent {
    driver: Arc<dyn Driver>,
    handle: EventHandle,
}

impl StreamEvent {
    /// Records a new event after all work submitted to the stream so far.
    ///
    /// # Errors
    /// Fails with the driver's error.
    pub fn new(stream: &Stream) -> Result<Self, SourceError> {
        let handle = stream.driver.create_event()?;
        let event = Self { driver: Arc::clone(&stream.driver), handle };
        event.record(stream)?;
        Ok(event)
    }

    /// Records the event again, after all work submitted so far to a stream of the same device.
    ///
    /// # Errors
    /// Fails with the driver's error; the event then keeps its previous record.
    pub fn record(&self, stream: &Stream) -> Result<(), SourceError> {
        // SAFETY: both handles live as long as their values do.
        unsafe { self.driver.record(self.handle, stream.handle) }
    }

    /// Whether the recorded work has ended. Does not wait.
    ///
    /// # Errors
    /// Fails with the driver's error.
    pub fn is_complete(&self) -> Result<bool, SourceError> {
        // SAFETY: the handle lives as long as the value does.
        unsafe { self.driver.query(self.handle) }
    }

    /// Waits until the recorded work has ended.
    ///
    /// # Errors
    /// Fails with the driver's error.
    pub fn synchronize(&self) -> Result<(), SourceError> {
        // SAFETY: the handle lives as long as the value does.
        unsafe { self.driver.synchronize_event(self.handle) }
    }

    pub(crate) fn is_of(&self, stream: &Stream) -> bool {
        Arc::ptr_eq(&self.driver, &stream.driver)
    }
}

impl Drop for StreamEvent {
    fn drop(&mut self) {
        // SAFETY: this value owns the handle, and no other code uses it.
        unsafe { self.driver.destroy_event(self.handle) };
    }
}

impl fmt::Debug for StreamEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamEvent({} of {})", self.handle.0, self.driver.name())
    }
}
