//! Whatever happens, each part trusts what each other part presents.

use super::super::{
    authorities::{Authorities, Authority, Retired},
    policy::{CLOCK_SKEW, CertificateView, Lifetimes, SecretView, State, Step, Wanted, next_step, plus},
    wanted::wanted,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

const LIFETIMES: Lifetimes = Lifetimes { certificate: Duration::from_hours(14 * 24) };

/// The API server's Secrets, the issuer, and pods that read their Secret some time after it was written.
struct Cluster {
    now: Timestamp,
    /// Of the issuer's clock.
    offset: SignedDuration,
    authorities: Authorities,
    secrets: BTreeMap<&'static str, SecretView>,
    wanted: Wanted,
    parts: BTreeMap<&'static str, Part>,
    created: u32,
    /// Of every authority that was created.
    expiries: BTreeMap<String, Timestamp>,
}

struct Part {
    held: SecretView,
    /// Since when its Secret has other content.
    behind_since: Option<Timestamp>,
    offset: SignedDuration,
}

#[derive(Clone, Debug)]
enum Event {
    /// Time passes, in parts of a certificate's lifetime, and the issuer takes some steps before it crashes.
    Pass {
        part: u32,
        steps: usize,
    },
    /// A pod reads its Secret.
    Read(usize),
    SetIssuerClock(i64),
    LoseSecret(usize),
    LoseAuthorities,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        12 => (40_u32..120, 1_usize..4).prop_map(|(part, steps)| Event::Pass { part, steps }),
        6 => (0_usize..3).prop_map(Event::Read),
        1 => (-25_i64..25).prop_map(Event::SetIssuerClock),
        1 => (0_usize..3).prop_map(Event::LoseSecret),
        1 => Just(Event::LoseAuthorities),
    ];
    prop::collection::vec(event, 1..700)
}

impl Cluster {
    fn new(offsets: [i64; 3]) -> Self {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let wanted = wanted("ml", ["shop", "iris"]);
        let mut cluster = Self {
            now,
            offset: SignedDuration::ZERO,
            authorities: Authorities::default(),
            secrets: BTreeMap::new(),
            wanted,
            parts: BTreeMap::new(),
            created: 0,
            expiries: BTreeMap::new(),
        };
        while cluster.step() {}
        // Pods start when their Secret exists.
        for (name, minutes) in cluster.wanted.keys().zip(offsets) {
            let held = cluster.secrets[name].clone();
            let offset = SignedDuration::from_mins(minutes);
            cluster.parts.insert(name, Part { held, behind_since: None, offset });
        }
        cluster
    }

    fn next_step(&self) -> Step {
        let Self { authorities, wanted, secrets, .. } = self;
        let now = self.now.checked_add(self.offset).unwrap();
        next_step(&State { authorities, wanted, secrets, now, lifetimes: LIFETIMES })
    }

    /// One write; `false` when there is nothing to do.
    fn step(&mut self) -> bool {
        let now = self.now.checked_add(self.offset).unwrap();
        let authorities = std::mem::take(&mut self.authorities);
        let step = {
            let Self { wanted, secrets, .. } = self;
            next_step(&State { authorities: &authorities, wanted, secrets, now, lifetimes: LIFETIMES })
        };
        self.created += 1;
        let name = format!("CA {}", self.created);
        let until = plus(now, LIFETIMES.authority());
        self.expiries.insert(name.clone(), until);
        let new = Authority { certificate: name.clone(), name, key: String::new(), from: now, until };
        let next = match step {
            Step::Wait => {
                self.authorities = authorities;
                return false;
            }
            Step::Write { secret, renew } => {
                self.authorities = authorities;
                self.write(secret, &renew, now);
                return true;
            }
            Step::Create => authorities.with_signing(new),
            Step::Prepare => {
                let lost = authorities.signing.is_none();
                let found = if lost { self.recovered(now) } else { Vec::new() };
                authorities.with_retired(found).with_next(new)
            }
            Step::Announce => authorities.announced_at(now),
            Step::Promote => authorities.promoted(),
            Step::Prune => authorities,
        };
        self.authorities = next.pruned(now);
        true
    }

    fn recovered(&self, now: Timestamp) -> Vec<Retired> {
        let mut everywhere: Option<BTreeSet<String>> = None;
        for secret in self.secrets.values() {
            everywhere = Some(match everywhere {
                None => secret.trusted.clone(),
                Some(known) => known.intersection(&secret.trusted).cloned().collect(),
            });
        }
        let names = everywhere.unwrap_or_default().into_iter();
        names
            .map(|name| Retired { certificate: name.clone(), until: self.expiries[&name], name })
            .filter(|retired| now < retired.until)
            .collect()
    }

    fn write(&mut self, secret: &'static str, renew: &BTreeSet<String>, now: Timestamp) {
        let signer = self.authorities.signer().expect("a certificate has a signer");
        let held = self.secrets.get(secret).cloned().unwrap_or_default();
        let mut view = SecretView {
            trusted: self.authorities.names().into_iter().map(str::to_owned).collect(),
            ..SecretView::default()
        };
        for (item, identity) in &self.wanted[secret] {
            let certificate = if renew.contains(item) {
                let until = plus(now, LIFETIMES.certificate).min(signer.until);
                CertificateView { issuer: signer.name.clone(), identity: identity.clone(), from: now, until }
            } else {
                held.certificates[item].clone()
            };
            view.certificates.insert(item.clone(), certificate);
        }
        self.secrets.insert(secret, view);
        if let Some(part) = self.parts.get_mut(secret) {
            part.behind_since.get_or_insert(self.now);
        }
    }

    fn read(&mut self, name: &str) {
        let part = self.parts.get_mut(name).unwrap();
        // A mounted Secret that is deleted stays as it was.
        if let Some(secret) = self.secrets.get(name) {
            part.held = secret.clone();
            part.behind_since = None;
        }
    }

    fn happen(&mut self, event: &Event) {
        match event {
            Event::Pass { part, steps } => {
                self.now = plus(self.now, LIFETIMES.certificate / *part);
                for _ in 0..*steps {
                    self.step();
                }
                // The longest time that a pod takes.
                let limit = LIFETIMES.propagation() / 2;
                let late = self.parts.iter().filter(|(_, part)| {
                    part.behind_since.is_some_and(|since| plus(since, limit) <= self.now)
                });
                let late: Vec<&str> = late.map(|(name, _)| *name).collect();
                for name in late {
                    self.read(name);
                }
            }
            Event::Read(index) => {
                let name = *self.parts.keys().nth(*index).unwrap();
                self.read(name);
            }
            Event::SetIssuerClock(minutes) => self.offset = SignedDuration::from_mins(*minutes),
            // Without the key of an authority that all trust, a lost Secret cannot be replaced at once.
            Event::LoseSecret(index) if self.authorities.signing.is_some() => {
                let name = *self.wanted.keys().nth(*index).unwrap();
                self.secrets.remove(name);
            }
            // As long as a Secret is missing, nothing but the stored authorities knows all of them; lost a second time
            // while they are being replaced, certificates may expire first.
            Event::LoseAuthorities
                if self.next_step() == Step::Wait && self.authorities.signing.is_some() =>
            {
                self.authorities = Authorities::default();
            }
            Event::LoseSecret(_) | Event::LoseAuthorities => {}
        }
    }

    /// Why a part would not accept another one.
    fn refusal(&self) -> Option<String> {
        for (presenting, part) in &self.parts {
            for (item, certificate) in &part.held.certificates {
                for (verifying, peer) in &self.parts {
                    let time = self.now.checked_add(peer.offset).unwrap();
                    let refused = |why: &str| Some(format!("{verifying} refuses {presenting}/{item}: {why}"));
                    if !peer.held.trusted.contains(&certificate.issuer) {
                        return refused(&format!(
                            "{} is unknown, not in {:?}",
                            certificate.issuer, peer.held.trusted
                        ));
                    }
                    if time >= certificate.until {
                        return refused("it has expired");
                    }
                    if plus(time, CLOCK_SKEW) < certificate.from {
                        return refused("it is not valid yet");
                    }
                }
            }
        }
        None
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_part_accepts_every_other_at_every_moment(
        events in events(),
        offsets in [-30_i64..30, -30_i64..30, -30_i64..30],
    ) {
        let mut cluster = Cluster::new(offsets);
        for (index, event) in events.iter().enumerate() {
            cluster.happen(event);
            let refusal = cluster.refusal();
            prop_assert!(refusal.is_none(), "after event {index} {event:?}: {}", refusal.unwrap_or_default());
        }
        // Undisturbed, it settles.
        let mut steps = 0;
        while cluster.step() {
            steps += 1;
            prop_assert!(steps < 20, "the issuer writes for ever: {:?}", cluster.next_step());
        }
    }
}

#[test]
fn authorities_and_certificates_are_renewed_for_years() {
    let mut cluster = Cluster::new([0; 3]);
    let mut signers = BTreeSet::new();
    let mut certificates = BTreeSet::new();
    for _ in 0..24 * 100 {
        cluster.happen(&Event::Pass { part: 24, steps: 4 });
        assert_eq!(cluster.refusal(), None);
        signers.insert(cluster.authorities.signing.as_ref().unwrap().name.clone());
        certificates.extend(cluster.parts["gantry-gateway-tls"].held.certificates.values().map(|c| c.from));
        assert!(cluster.authorities.retired.len() <= 2, "{:?}", cluster.authorities.retired);
    }
    // Four years.
    assert!((15..=22).contains(&signers.len()), "{}", signers.len());
    assert!((140..=190).contains(&certificates.len()), "{}", certificates.len());
}
