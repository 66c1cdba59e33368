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
pub(crate) use programs::Programs;
use std::path::PathBuf;

const WORDS: &str =
    "k8s takes up [--node] [--kwok N] [--audit], down, status, each with --dir DIRECTORY; and path PROGRAM";

/// What is to be done with a cluster.
#[derive(Debug, PartialEq, Eq)]
enum Order {
    Up(Options),
    Down(PathBuf),
    Status(PathBuf),
    Path(String),
}

pub(crate) fn run(arguments: &[&str]) -> Result<bool, Failure> {
    match read(arguments)? {
        Order::Up(options) => {
            let cluster = Cluster::up(&options)?;
            print!("{}", std::fs::read_to_string(cluster.directory().join("env"))?);
            Ok(true)
        }
        Order::Down(directory) => {
            let directory = Directory::at(&directory)?;
            let stopped = cluster::down(&directory)?;
            match stopped {
                0 => println!("No cluster ran in {}.", directory.path().display()),
                _ => println!("Stopped {stopped} processes."),
            }
            Ok(true)
        }
        Order::Status(directory) => {
            let (said, healthy) = cluster::status(&Directory::at(&directory)?)?;
            println!("{said}");
            Ok(healthy)
        }
        Order::Path(program) => {
            println!("{}", self::program(&program)?.display());
            Ok(true)
        }
    }
}

/// Where a program is, such as helm or kubectl; it is built when it is not there.
pub(crate) fn program(name: &str) -> Result<PathBuf, Failure> {
    let programs = Programs::locate()?;
    programs.ensure(&[name])?;
    Ok(programs.path(name))
}

/// Where a cluster lives when nobody says where.
pub(crate) fn default_directory() -> PathBuf {
    metadata::target().join("k8s")
}

fn read(arguments: &[&str]) -> Result<Order, Failure> {
    let (order, rest) = match arguments {
        [] => return Err(WORDS.into()),
        ["path", program] => return Ok(Order::Path((*program).to_owned())),
        [order, rest @ ..] => (order, rest),
    };
    let mut options = Options { directory: default_directory(), node: false, kwok: 0, audit_reads: false };
    let up = *order == "up";
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
            other => return Err(format!("k8s {order} does not know {other}: {WORDS}").into()),
        }
    }
    match *order {
        "up" => Ok(Order::Up(options)),
        "down" => Ok(Order::Down(options.directory)),
        "status" => Ok(Order::Status(options.directory)),
        other => Err(format!("k8s does not know {other}: {WORDS}").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_read() {
        let Order::Up(options) = read(&["up", "--kwok", "200", "--audit", "--dir", "/tmp/x"]).unwrap() else {
            panic!("not up")
        };
        assert_eq!(
            options,
            Options { directory: "/tmp/x".into(), node: false, kwok: 200, audit_reads: true }
        );
        assert!(matches!(read(&["up", "--node"]), Ok(Order::Up(Options { node: true, kwok: 0, .. }))));
        assert_eq!(read(&["down"]).unwrap(), Order::Down(default_directory()));
        assert_eq!(read(&["status", "--dir", "a"]).unwrap(), Order::Status("a".into()));
        assert_eq!(read(&["path", "helm"]).unwrap(), Order::Path("helm".into()));
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
