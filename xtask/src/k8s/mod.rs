//! `cargo xtask k8s up | down | status`: a real Kubernetes on this machine, for tests.

mod cluster;
mod control_plane;
mod directory;
mod kwok;
mod node;
mod pki;
mod process;
mod programs;

use crate::{Failure, metadata};
pub(crate) use cluster::{Cluster, Guard, Options, guard, until};
use directory::Directory;
pub(crate) use node::requirements as node_requirements;
pub(crate) use programs::{Peer, Programs};
use std::path::PathBuf;

const USAGE: &str =
    "k8s takes up [--node] [--kwok N] [--audit], down, status, each with --dir DIRECTORY; and path PROGRAM";

#[derive(Debug, PartialEq, Eq)]
enum Command {
    Up(Options),
    Down(PathBuf),
    Status(PathBuf),
    Path(String),
}

pub(crate) fn run(arguments: &[&str]) -> Result<bool, Failure> {
    match read(arguments)? {
        Command::Up(options) => {
            let cluster = Cluster::up(&options)?;
            print!("{}", std::fs::read_to_string(cluster.directory().join("env"))?);
            Ok(true)
        }
        Command::Down(directory) => {
            let directory = Directory::at(&directory)?;
            let stopped = cluster::down(&directory)?;
            match stopped {
                0 => println!("No cluster ran in {}.", directory.path().display()),
                _ => println!("Stopped {stopped} processes."),
            }
            Ok(true)
        }
        Command::Status(directory) => {
            let (text, healthy) = cluster::status(&Directory::at(&directory)?)?;
            println!("{text}");
            Ok(healthy)
        }
        Command::Path(program) => {
            println!("{}", self::program(&program)?.display());
            Ok(true)
        }
    }
}

/// Address of the first node, which pods reach.
pub(crate) const fn node_address() -> std::net::Ipv4Addr {
    node::FIRST.address()
}

/// The path of a program such as helm or kubectl; built if missing.
pub(crate) fn program(name: &str) -> Result<PathBuf, Failure> {
    let programs = Programs::locate()?;
    programs.ensure(&[name])?;
    Ok(programs.path(name))
}

pub(crate) fn default_directory() -> PathBuf {
    metadata::target().join("k8s")
}

fn read(arguments: &[&str]) -> Result<Command, Failure> {
    let (command, rest) = match arguments {
        [] => return Err(USAGE.into()),
        ["path", program] => return Ok(Command::Path((*program).to_owned())),
        [command, rest @ ..] => (command, rest),
    };
    let mut options = Options { directory: default_directory(), node: false, kwok: 0, audit_reads: false };
    let up = *command == "up";
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        match *word {
            "--dir" => {
                options.directory = words.next().ok_or("--dir needs a directory")?.into();
            }
            "--node" if up => options.node = true,
            "--audit" if up => options.audit_reads = true,
            "--kwok" if up => {
                let number = words.next().ok_or("--kwok needs the number of simulated nodes")?;
                options.kwok =
                    number.parse().map_err(|_| format!("--kwok needs a number of nodes, not {number}"))?;
            }
            other => return Err(format!("unknown argument {other} of k8s {command}; {USAGE}").into()),
        }
    }
    match *command {
        "up" => Ok(Command::Up(options)),
        "down" => Ok(Command::Down(options.directory)),
        "status" => Ok(Command::Status(options.directory)),
        other => Err(format!("unknown k8s command {other}; {USAGE}").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed() {
        let Command::Up(options) = read(&["up", "--kwok", "200", "--audit", "--dir", "/tmp/x"]).unwrap()
        else {
            panic!("not up")
        };
        assert_eq!(
            options,
            Options { directory: "/tmp/x".into(), node: false, kwok: 200, audit_reads: true }
        );
        assert!(matches!(read(&["up", "--node"]), Ok(Command::Up(Options { node: true, kwok: 0, .. }))));
        assert_eq!(read(&["down"]).unwrap(), Command::Down(default_directory()));
        assert_eq!(read(&["status", "--dir", "a"]).unwrap(), Command::Status("a".into()));
        assert_eq!(read(&["path", "helm"]).unwrap(), Command::Path("helm".into()));
        for wrong in [
            &[][..],
            &["path"],
            &["path", "helm", "kubectl"],
            &["around"],
            &["down", "--node"],
            &["up", "--kwok"],
            &["up", "--kwok", "many"],
            &["up", "--dir"],
            &["up", "--fast"],
        ] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
