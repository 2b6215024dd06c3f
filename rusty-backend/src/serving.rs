//! Which devices run kernels that were planned for other facts than theirs.

use crate::Target;
use crate::target::ADDRESSABLE;

/// Whether a device has what kernels may need, and what that is.
type Need = (bool, String);

impl Target {
    /// Whether this device runs what was planned for `wanted`: kernels may need no fact that it lacks. What only tells who or how
    /// fast a device is, and how much memory it has, does not matter.
    ///
    /// # Errors
    /// What it lacks: `planes of 32 units`.
    pub fn serves(&self, wanted: &Target) -> Result<(), String> {
        let mut needs = self.abilities(wanted).into_iter().chain(self.room(wanted));
        match needs.find(|(has, _)| !has) {
            Some((_, lack)) => Err(lack),
            None => Ok(()),
        }
    }

    /// These facts as kernels are to be planned for `wanted`, which the device [serves](Target::serves): what kernels are chosen and
    /// specialised by is `wanted`'s, all else the device's.
    pub fn planned_as(&self, wanted: &Target) -> Target {
        // All facts are named, so that a new one is thought of: here, and in what is needed.
        Target {
            name: self.name.clone(),
            driver: self.driver.clone(),
            family: self.family,
            language: wanted.language,
            isa: wanted.isa,
            threads: self.threads,
            reads_ahead: self.reads_ahead,
            plane_size: wanted.plane_size,
            plane_size_max: wanted.plane_size_max,
            plane_ops: wanted.plane_ops,
            orders_groups: wanted.orders_groups,
            starts_in_order: wanted.starts_in_order,
            f16: wanted.f16,
            packed_dot: wanted.packed_dot,
            matrix_tiles: wanted.matrix_tiles.clone(),
            // Weights are cut where they are bound: larger pieces need no other kernels.
            max_binding_bytes: self.max_binding_bytes,
            max_buffer_bytes: self.max_buffer_bytes,
            binding_align: wanted.binding_align,
            max_bindings: wanted.max_bindings,
            max_groups: wanted.max_groups,
            max_units: wanted.max_units,
            shared_bytes: wanted.shared_bytes,
            memory_bytes: self.memory_bytes,
            unified_memory: self.unified_memory,
            read_bandwidth: self.read_bandwidth,
            launch_nanos: self.launch_nanos,
            cuda_arch: wanted.cuda_arch,
        }
    }

    /// What kernels are written in, and what they do.
    fn abilities(&self, wanted: &Target) -> [Need; 9] {
        // Units exchange values with neighbours of a plane of the target's size, which larger ones contain.
        let planes = self.plane_ops && self.plane_size >= wanted.plane_size;
        let units = self.multiplies_bf16() && self.plane_size == wanted.plane_size;
        let either = |needs: bool, has: bool| !needs || has;
        [
            (
                self.language == wanted.language,
                format!("kernels in {:?}", wanted.language),
            ),
            (
                self.isa == wanted.isa,
                format!("the instructions of {:?}", wanted.isa),
            ),
            // Machine code is for one architecture alone.
            (
                self.cuda_arch == wanted.cuda_arch,
                format!("the architecture sm_{}", wanted.cuda_arch),
            ),
            (
                either(wanted.plane_ops, planes),
                format!("planes of {} units", wanted.plane_size),
            ),
            (
                either(wanted.orders_groups, self.orders_groups),
                "groups that see what others wrote".into(),
            ),
            (
                either(wanted.starts_in_order, self.starts_in_order),
                "groups that start in order".into(),
            ),
            (
                either(wanted.f16, self.f16),
                "half-precision arithmetic".into(),
            ),
            (
                either(wanted.packed_dot, self.packed_dot),
                "packed products of bytes".into(),
            ),
            // Kernels take no tiles but those, and planes that are as wide.
            (
                either(wanted.multiplies_bf16(), units),
                "matrix units for 16-bit floats".into(),
            ),
        ]
    }

    /// What kernels find room in.
    fn room(&self, wanted: &Target) -> [Need; 6] {
        let binding = wanted.max_binding_bytes.min(ADDRESSABLE);
        let align = wanted.binding_align;
        let mut groups = self.max_groups.iter().zip(wanted.max_groups);
        [
            (
                self.max_binding_bytes >= binding,
                format!("bindings of {binding} bytes"),
            ),
            (
                align.is_multiple_of(self.binding_align),
                format!("bindings at multiples of {align} bytes"),
            ),
            (
                self.max_bindings >= wanted.max_bindings,
                format!("{} bindings of a kernel", wanted.max_bindings),
            ),
            (
                groups.all(|(has, needs)| *has >= needs),
                format!("{:?} groups of a launch", wanted.max_groups),
            ),
            (
                self.max_units >= wanted.max_units,
                format!("{} units of a group", wanted.max_units),
            ),
            (
                self.shared_bytes >= wanted.shared_bytes,
                format!("{} bytes of a group's shared memory", wanted.shared_bytes),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use crate::{Family, Isa, Language, Target, WgpuApi};

    fn named(name: &str) -> Target {
        Target::named(name).expect(name)
    }

    /// A target, changed.
    fn with(name: &str, change: impl FnOnce(&mut Target)) -> Target {
        let mut target = named(name);
        change(&mut target);
        target
    }

    /// What a device lacks, and words of what is said of it.
    type Lack = (fn(&mut Target), &'static str);

    #[test]
    fn each_fact_that_kernels_need_must_be_there() {
        let lacks: [Lack; 19] = [
            (|t| t.language = Language::Wgsl, "CudaC"),
            (|t| t.isa = Isa::Avx2 { vnni: false }, "Scalar"),
            (|t| t.cuda_arch = 89, "sm_90"),
            (|t| t.cuda_arch = 100, "sm_90"),
            (|t| t.plane_ops = false, "planes of 32"),
            (|t| t.plane_size = 16, "planes of 32"),
            (|t| t.plane_size_max = 64, "matrix units"),
            (
                |t| (t.plane_size, t.plane_size_max) = (64, 64),
                "matrix units",
            ),
            (|t| t.orders_groups = false, "what others wrote"),
            (|t| t.starts_in_order = false, "start in order"),
            (|t| t.f16 = false, "half-precision"),
            (|t| t.packed_dot = false, "products of bytes"),
            (|t| t.matrix_tiles.clear(), "matrix units"),
            (|t| t.max_binding_bytes = (1 << 31) - 4, "2147483648 bytes"),
            (|t| t.binding_align = 512, "multiples of 256"),
            (|t| t.max_bindings = 63, "64 bindings"),
            (|t| t.max_groups[1] = 65_534, "65535"),
            (|t| t.max_units = 1023, "1024 units"),
            (|t| t.shared_bytes -= 1, "232448 bytes"),
        ];
        let wanted = named("h200");
        assert_eq!(wanted.serves(&wanted), Ok(()));
        for (lack, said) in lacks {
            let lacking = with("h200", lack).serves(&wanted).expect_err(said);
            assert!(lacking.contains(said), "{lacking} for {said}");
        }
    }

    #[test]
    fn what_kernels_do_not_need_may_be_otherwise() {
        let others: [fn(&mut Target); 15] = [
            |t| t.name = "another".into(),
            |t| t.driver = "another".into(),
            |t| t.family = Family::Wgpu(WgpuApi::Dx12),
            |t| t.threads = 3,
            |t| t.max_buffer_bytes = 1 << 20,
            |t| t.memory_bytes = 1 << 20,
            |t| t.unified_memory = true,
            |t| t.read_bandwidth = 1,
            |t| t.launch_nanos = 1,
            // Kernels address no more of it.
            |t| t.max_binding_bytes = 1 << 31,
            |t| t.binding_align = 32,
            |t| t.max_bindings = 1000,
            |t| t.max_groups = [u32::MAX; 3],
            |t| t.max_units = 2048,
            |t| t.shared_bytes += 1,
        ];
        for (at, other) in others.into_iter().enumerate() {
            assert_eq!(with("h200", other).serves(&named("h200")), Ok(()), "{at}");
        }
        // What the target lacks, too, a device need not have, nor planes of a size that no kernel counts on.
        let least = with("webgpu", |t| {
            (t.plane_size, t.plane_size_max) = (4, 128);
            t.matrix_tiles = vec![(8, 8, 8)];
        });
        assert_eq!(least.serves(&named("webgpu")), Ok(()));
        let tiles = with("vulkan", |t| t.matrix_tiles = vec![(16, 16, 16)]);
        assert_eq!(named("vulkan").serves(&tiles), Ok(()));
    }

    #[test]
    fn what_apis_have_serves_their_devices() {
        for (device, target) in [
            ("llvmpipe", "vulkan"),
            ("llvmpipe", "dx12"),
            ("llvmpipe", "webgpu"),
            ("rdna3", "vulkan"),
            ("m2", "metal"),
            ("h200", "cuda:sm_90"),
            ("rtx4090", "cuda:sm_89"),
        ] {
            assert_eq!(named(device).serves(&named(target)), Ok(()), "{device}");
        }
        for (device, target) in [
            ("vulkan", "llvmpipe"),
            ("llvmpipe", "m2"),
            ("metal", "vulkan"),
            ("h200", "vulkan"),
            ("h200", "cuda:sm_89"),
        ] {
            assert!(named(device).serves(&named(target)).is_err(), "{device}");
        }
    }

    #[test]
    fn plans_are_for_the_target_on_the_device() {
        let (device, wanted) = (named("rdna3"), named("vulkan"));
        let planned = device.planned_as(&wanted);
        // All that a plan could take is there, and taken from the target.
        assert_eq!((device.serves(&planned), planned.f16), (Ok(()), false));
        assert!(planned.matrix_tiles.is_empty());
        assert_eq!(
            (planned.name.as_str(), planned.memory_bytes),
            ("rdna3", 24 << 30)
        );
        assert_eq!(planned.max_binding_bytes, device.max_binding_bytes);
        assert_eq!(device.planned_as(&device), device);
    }
}
