//! What CubeCL is told of a device that need not be here.

use super::kernels::env::{BINDINGS, language_name};
use cubecl::ir::features::{Plane, TypeUsage};
use cubecl::ir::{
    AddressType, DeviceIdentity, DeviceProperties, ElemType, FloatKind, HardwareProperties,
    IntKind, MemoryDeviceProperties, UIntKind,
};
use rusty_backend::{Language, Target};

/// Properties that stand for a device towards CubeCL.
pub(super) fn device_properties(target: &Target) -> DeviceProperties {
    let mut properties = DeviceProperties::new(
        Default::default(),
        MemoryDeviceProperties::new(1 << 31, 256),
        HardwareProperties {
            load_width: 128,
            vector_register_count: None,
            plane_size_min: target.plane_size,
            plane_size_max: target.plane_size,
            max_bindings: BINDINGS as u32 + 1,
            max_shared_memory_size: target.shared_bytes as usize,
            max_cube_count: (65535, 65535, 65535),
            max_units_per_cube: 1024,
            max_cube_dim: (1024, 1024, 64),
            num_streaming_multiprocessors: None,
            num_cpu_cores: None,
            last_level_cache_size: None,
            num_tensor_cores: None,
            min_tensor_cores_dim: None,
            max_vector_size: 4,
            cube_mma_reserved_shared_memory: 0,
        },
        cubecl_common::profile::TimingMethod::System,
        DeviceIdentity {
            name: language_name(target.language).into(),
            fingerprint: "target".into(),
            physical: None,
        },
    );
    properties.register_address_type(AddressType::U32);
    for element in [
        ElemType::Index,
        ElemType::UInt(UIntKind::U32),
        ElemType::Int(IntKind::I32),
        ElemType::Float(FloatKind::F32),
        ElemType::Bool,
    ] {
        properties.register_type_usage(element, TypeUsage::all());
    }
    if target.plane_ops {
        properties.features.plane.insert(Plane::Ops);
    }
    if target.f16 && target.language == Language::Wgsl {
        let half = ElemType::Float(FloatKind::F16);
        properties.register_type_usage(half, TypeUsage::all());
    }
    properties
}
