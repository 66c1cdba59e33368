//! A port of a pod, on this machine.

use super::harness::Harness;
use crate::Failure;
use std::{
    io::{BufRead as _, BufReader},
    process::{Child, ChildStdout, Stdio},
};

/// `kubectl port-forward` until dropped.
pub(super) struct PortForward {
    kubectl: Child,
    pub(super) port: u16,
    /// Kept open: kubectl exits when its output is closed.
    _output: Option<BufReader<ChildStdout>>,
}

impl PortForward {
    pub(super) fn to(harness: &Harness, service: &str, port: u16) -> Result<Self, Failure> {
        let mut command = harness.kubectl_command();
        command.args(["port-forward", service, &format!(":{port}")]);
        let mut kubectl =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut line = String::new();
        let mut output = kubectl.stdout.take().map(BufReader::new);
        if let Some(output) = &mut output {
            output.read_line(&mut line)?;
        }
        // Forwarding from 127.0.0.1:40001 -> 9004
        let chosen = line.split(" -> ").next().and_then(|from| from.rsplit_once(':')?.1.parse().ok());
        let mut forward = Self { kubectl, port: 0, _output: output };
        forward.port =
            chosen.ok_or_else(|| format!("unexpected output of kubectl port-forward: {line:?}"))?;
        Ok(forward)
    }
}

impl Drop for PortForward {
    fn drop(&mut self) {
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}
