//! Host devices.
