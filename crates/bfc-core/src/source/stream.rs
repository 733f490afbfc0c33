//! Streams and events of a device: owned handles over a [`Driver`].

use std::fmt;
use std::sync::Arc;

use super::driver::{Driver, EventHandle, MemoryCopy, StreamHandle};
use super::error::SourceError;

/// A queue of a device, in which work is done in the order given.
///
/// ```
/// use std::sync::Arc;
/// use bfc_core::sim::SimDevice;
/// use bfc_core::{Bytes, Event, Stream};
///
/// let device = Arc::new(SimDevice::new(Bytes::mib(64)));
/// let (compute, copies) = (Stream::new(device.clone())?, Stream::new(device)?);
/// // What `compute` is given from now on comes after what `copies` was given so far.
/// let event = Event::new(&copies)?;
/// compute.wait(&event)?;
/// event.synchronise()?;
/// # Ok::<(), bfc_core::SourceError>(())
/// ```
pub struct Stream {
    driver: Arc<dyn Driver>,
    handle: StreamHandle,
}

impl Stream {
    /// A new stream of the device behind `driver`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(driver: Arc<dyn Driver>) -> Result<Arc<Self>, SourceError> {
        let handle = driver.create_stream()?;
        Ok(Arc::new(Self { driver, handle }))
    }

    /// The device's driver.
    #[must_use]
    pub const fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// The driver's handle, valid as long as the stream lives.
    #[must_use]
    pub const fn handle(&self) -> StreamHandle {
        self.handle
    }

    /// Makes what the stream is given from now on wait for the work that the event stands for. The host does not wait.
    ///
    /// # Errors
    /// What the driver says; then the stream does not wait.
    pub fn wait(&self, event: &Event) -> Result<(), SourceError> {
        // SAFETY: both handles live as long as their values do.
        unsafe { self.driver.wait(self.handle, event.handle) }
    }

    /// Gives the stream a copy to do.
    ///
    /// # Errors
    /// What the driver says; then nothing is copied.
    ///
    /// # Safety
    /// As [`Driver::copy`], but for the stream.
    pub unsafe fn copy(&self, copy: MemoryCopy) -> Result<(), SourceError> {
        // SAFETY: the stream lives, and the caller promises the rest.
        unsafe { self.driver.copy(copy, self.handle) }
    }

    /// Returns when all that the stream was given has ended.
    ///
    /// # Errors
    /// What the driver says.
    pub fn synchronise(self: &Arc<Self>) -> Result<(), SourceError> {
        Event::new(self)?.synchronise()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, and nobody has it any more.
        unsafe { self.driver.destroy_stream(self.handle) };
    }
}

impl PartialEq for Stream {
    /// Whether it is the same stream of the same device.
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

/// A point in a stream: complete when all work that the stream was given before has ended.
pub struct Event {
    driver: Arc<dyn Driver>,
    handle: EventHandle,
}

impl Event {
    /// A point after all the work that the stream was given so far.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(stream: &Stream) -> Result<Self, SourceError> {
        let handle = stream.driver.create_event()?;
        let event = Self { driver: Arc::clone(&stream.driver), handle };
        event.record(stream)?;
        Ok(event)
    }

    /// Moves the event to another point: after all the work that the stream, of the same device, was given so far.
    ///
    /// # Errors
    /// What the driver says; then the event stands where it did.
    pub fn record(&self, stream: &Stream) -> Result<(), SourceError> {
        // SAFETY: both handles live as long as their values do.
        unsafe { self.driver.record(self.handle, stream.handle) }
    }

    /// Whether that work has ended. Does not wait.
    ///
    /// # Errors
    /// What the driver says.
    pub fn is_complete(&self) -> Result<bool, SourceError> {
        // SAFETY: the handle lives as long as the value does.
        unsafe { self.driver.query(self.handle) }
    }

    /// Returns when that work has ended.
    ///
    /// # Errors
    /// What the driver says.
    pub fn synchronise(&self) -> Result<(), SourceError> {
        // SAFETY: the handle lives as long as the value does.
        unsafe { self.driver.synchronise_event(self.handle) }
    }

    pub(crate) fn is_of(&self, stream: &Stream) -> bool {
        Arc::ptr_eq(&self.driver, &stream.driver)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, and nobody has it any more.
        unsafe { self.driver.destroy_event(self.handle) };
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({} of {})", self.handle.0, self.driver.name())
    }
}
