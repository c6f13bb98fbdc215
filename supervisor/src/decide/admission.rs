//! May one more worker start? Cannot-tell refuses: a check that could not be measured is a reason of its own.

use crate::{config::Admission, verdict::AdmissionCheck};

/// What was measured; an `Err` says why it could not be.
#[derive(Debug, Clone, PartialEq)]
pub struct HostReading {
    /// 1-minute load average.
    pub load: Result<f64, String>,
    /// Free bytes on the lane's file system.
    pub disk_free: Result<u64, String>,
    /// `MemAvailable`, bytes.
    pub memory_available: Result<u64, String>,
    /// PSI memory some avg10, percent; `None` where the kernel has no PSI and no bound is configured.
    pub pressure: Result<Option<f64>, String>,
}

/// One reason not to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The check.
    pub check: AdmissionCheck,
    /// Whether it was measured, or could not be.
    pub measured: bool,
    /// One sentence with both numbers.
    pub detail: String,
}

/// Every check that refuses; empty admits.
#[must_use]
pub fn admit(reading: &HostReading, limits: &Admission) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let mut check = |check, answer: Result<Option<String>, String>| match answer {
        Ok(None) => {}
        Ok(Some(detail)) => refusals.push(Refusal { check, measured: true, detail }),
        Err(why) => refusals.push(Refusal {
            check,
            measured: false,
            detail: format!("{check} could not be measured: {why}"),
        }),
    };
    check(
        AdmissionCheck::Load,
        over(&reading.load, |load| {
            (load > limits.load_max)
                .then(|| format!("load {load:.2} is above load_max {:.2}", limits.load_max))
        }),
    );
    check(
        AdmissionCheck::Disk,
        over(&reading.disk_free, |free| {
            (free < limits.disk_free_min).then(|| {
                let least = gib(limits.disk_free_min);
                format!("{} free on disk is below disk_free_min {least}", gib(free))
            })
        }),
    );
    check(
        AdmissionCheck::Memory,
        over(&reading.memory_available, |available| {
            (available < limits.memory_available_min).then(|| {
                let least = gib(limits.memory_available_min);
                format!(
                    "{} of memory available is below memory_available_min {least}",
                    gib(available)
                )
            })
        }),
    );
    if let Some(most) = limits.memory_pressure_some_avg10_max {
        check(
            AdmissionCheck::Pressure,
            match &reading.pressure {
                Ok(Some(avg10)) if *avg10 > most => {
                    Ok(Some(format!("memory pressure some avg10 {avg10:.2} is above {most:.2}")))
                }
                Ok(Some(_)) => Ok(None),
                Ok(None) => Err("this kernel has no pressure stall information".to_owned()),
                Err(why) => Err(why.clone()),
            },
        );
    }
    refusals
}

fn over<T: Copy>(
    value: &Result<T, String>,
    test: impl Fn(T) -> Option<String>,
) -> Result<Option<String>, String> {
    value.as_ref().map(|&value| test(value)).map_err(Clone::clone)
}

fn gib(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    let mib = bytes / MIB;
    if mib < 1024 {
        format!("{mib}M")
    } else {
        format!("{}.{}G", mib / 1024, mib % 1024 * 10 / 1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Admission {
        Admission {
            load_max: 8.0,
            disk_free_min: 2 << 30,
            memory_available_min: 1 << 30,
            memory_pressure_some_avg10_max: Some(20.0),
        }
    }

    fn well() -> HostReading {
        HostReading {
            load: Ok(1.0),
            disk_free: Ok(50 << 30),
            memory_available: Ok(8 << 30),
            pressure: Ok(Some(0.0)),
        }
    }

    #[test]
    fn a_well_box_admits_and_each_check_refuses_alone() {
        assert!(admit(&well(), &limits()).is_empty());
        let bad = [
            (AdmissionCheck::Load, HostReading { load: Ok(9.0), ..well() }),
            (AdmissionCheck::Disk, HostReading { disk_free: Ok(1 << 30), ..well() }),
            (AdmissionCheck::Memory, HostReading { memory_available: Ok(1), ..well() }),
            (AdmissionCheck::Pressure, HostReading { pressure: Ok(Some(30.0)), ..well() }),
        ];
        assert_eq!(bad.len(), AdmissionCheck::ALL.len());
        for (check, reading) in bad {
            let refusals = admit(&reading, &limits());
            assert_eq!(refusals.len(), 1, "{check}");
            assert!(refusals[0].check == check && refusals[0].measured, "{refusals:?}");
        }
    }

    #[test]
    fn what_could_not_be_measured_refuses() {
        let blind = HostReading {
            load: Err("EIO".to_owned()),
            disk_free: Err("EIO".to_owned()),
            memory_available: Err("EIO".to_owned()),
            pressure: Ok(None),
        };
        let refusals = admit(&blind, &limits());
        assert_eq!(refusals.len(), 4);
        assert!(refusals.iter().all(|refusal| !refusal.measured));
        let unbounded = Admission { memory_pressure_some_avg10_max: None, ..limits() };
        assert_eq!(admit(&blind, &unbounded).len(), 3, "no bound, no check");
    }
}
