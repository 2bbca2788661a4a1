/*
 * Made by tools/lloyd_max.c; not to be edited. See lloyd_tables.h.
 */
#include <assert.h>

#include "kernel/lloyd_tables.h"

static const uint16_t levels_2[4] = {
    0, 89, 165, 254,
};

static const uint8_t bytes_2[16] = {
    0, 89, 165, 254,
};

static const float thresholds_2[3] = {
    -0x1.f65cccp-1f, 0x0p+0f, 0x1.f65cccp-1f,
};

static const firni_lloyd lloyd_2 = {
    .unit = 0x1.85b626p-7f,
    .centre = 127,
    .bytes = bytes_2,
    .levels = levels_2,
    .thresholds = thresholds_2,
};

static const uint16_t levels_3[8] = {
    0, 48, 82, 113, 141, 172, 206, 254,
};

static const uint8_t bytes_3[16] = {
    0, 48, 82, 113, 141, 172, 206, 254,
};

static const float thresholds_3[7] = {
    -0x1.beca98p+0f, -0x1.0cf14p+0f, -0x1.ffdbacp-2f, 0x0p+0f, 0x1.ffdbacp-2f, 0x1.0cf14p+0f,
    0x1.beca98p+0f,
};

static const firni_lloyd lloyd_3 = {
    .unit = 0x1.159e32p-6f,
    .centre = 127,
    .bytes = bytes_3,
    .levels = levels_3,
    .thresholds = thresholds_3,
};

static const uint16_t levels_4[16] = {
    0, 31, 52, 69, 83, 96, 109, 121, 133, 145, 158, 171, 185, 202, 223, 254,
};

static const uint8_t bytes_4[16] = {
    0, 31, 52, 69, 83, 96, 109, 121, 133, 145, 158, 171, 185, 202, 223, 254,
};

static const float thresholds_4[15] = {
    -0x1.331534p+1f, -0x1.d6f3cp+0f, -0x1.6e4bcep+0f, -0x1.18eb38p+0f, -0x1.9d1dacp-1f, -0x1.0de704p-1f,
    -0x1.0864e8p-2f, 0x0p+0f, 0x1.0864e8p-2f, 0x1.0de704p-1f, 0x1.9d1dacp-1f, 0x1.18eb38p+0f,
    0x1.6e4bcep+0f, 0x1.d6f3cp+0f, 0x1.331534p+1f,
};

static const firni_lloyd lloyd_4 = {
    .unit = 0x1.60868cp-6f,
    .centre = 127,
    .bytes = bytes_4,
    .levels = levels_4,
    .thresholds = thresholds_4,
};

static const uint16_t levels_5[32] = {
    0, 22, 37, 48, 57, 66, 73, 80, 86, 92, 98, 103, 109, 114, 119, 124,
    130, 135, 140, 145, 151, 156, 162, 168, 174, 181, 188, 197, 206, 217, 232, 254,
};

static const uint8_t bytes_5[32] = {
    0, 22, 37, 48, 57, 66, 73, 80, 86, 92, 98, 103, 109, 114, 119, 124,
    130, 135, 140, 145, 151, 156, 162, 168, 174, 181, 188, 197, 206, 217, 232, 254,
};

static const float thresholds_5[31] = {
    -0x1.7d3928p+1f, -0x1.406cbcp+1f, -0x1.15b39p+1f, -0x1.e9acbap+0f, -0x1.ae84f6p+0f, -0x1.79efd6p+0f,
    -0x1.4bed5ap+0f, -0x1.21343p+0f, -0x1.f388bp-1f, -0x1.a4a9p-1f, -0x1.5c5bf4p-1f, -0x1.140ee8p-1f,
    -0x1.9783b8p-2f, -0x1.140ee8p-2f, -0x1.21343p-3f, 0x0p+0f, 0x1.21343p-3f, 0x1.140ee8p-2f,
    0x1.9783b8p-2f, 0x1.140ee8p-1f, 0x1.5c5bf4p-1f, 0x1.a4a9p-1f, 0x1.f388bp-1f, 0x1.21343p+0f,
    0x1.4bed5ap+0f, 0x1.79efd6p+0f, 0x1.ae84f6p+0f, 0x1.e9acbap+0f, 0x1.15b39p+1f, 0x1.406cbcp+1f,
    0x1.7d3928p+1f,
};

static const firni_lloyd lloyd_5 = {
    .unit = 0x1.a4a9p-6f,
    .centre = 127,
    .bytes = bytes_5,
    .levels = levels_5,
    .thresholds = thresholds_5,
};

static const uint16_t levels_8[256] = {
    0, 185, 301, 388, 457, 516, 566, 611, 652, 689, 723, 755, 785, 813, 839, 864,
    888, 911, 933, 954, 974, 993, 1012, 1030, 1048, 1065, 1082, 1098, 1114, 1129, 1145, 1159,
    1174, 1188, 1202, 1215, 1229, 1242, 1255, 1267, 1280, 1292, 1304, 1316, 1328, 1339, 1350, 1362,
    1373, 1384, 1395, 1405, 1416, 1426, 1437, 1447, 1457, 1467, 1477, 1487, 1496, 1506, 1516, 1525,
    1535, 1544, 1553, 1562, 1572, 1581, 1590, 1599, 1607, 1616, 1625, 1634, 1642, 1651, 1659, 1668,
    1676, 1685, 1693, 1702, 1710, 1718, 1726, 1734, 1743, 1751, 1759, 1767, 1775, 1783, 1791, 1799,
    1807, 1814, 1822, 1830, 1838, 1846, 1853, 1861, 1869, 1877, 1884, 1892, 1900, 1907, 1915, 1923,
    1930, 1938, 1945, 1953, 1960, 1968, 1976, 1983, 1991, 1998, 2006, 2013, 2021, 2028, 2036, 2043,
    2051, 2058, 2066, 2073, 2081, 2088, 2096, 2103, 2111, 2118, 2126, 2134, 2141, 2149, 2156, 2164,
    2171, 2179, 2187, 2194, 2202, 2210, 2217, 2225, 2233, 2241, 2248, 2256, 2264, 2272, 2280, 2287,
    2295, 2303, 2311, 2319, 2327, 2335, 2343, 2351, 2360, 2368, 2376, 2384, 2392, 2401, 2409, 2418,
    2426, 2435, 2443, 2452, 2460, 2469, 2478, 2487, 2495, 2504, 2513, 2522, 2532, 2541, 2550, 2559,
    2569, 2578, 2588, 2598, 2607, 2617, 2627, 2637, 2647, 2657, 2668, 2678, 2689, 2699, 2710, 2721,
    2732, 2744, 2755, 2766, 2778, 2790, 2802, 2814, 2827, 2839, 2852, 2865, 2879, 2892, 2906, 2920,
    2935, 2949, 2965, 2980, 2996, 3012, 3029, 3046, 3064, 3082, 3101, 3120, 3140, 3161, 3183, 3206,
    3230, 3255, 3281, 3309, 3339, 3371, 3405, 3442, 3483, 3528, 3578, 3637, 3706, 3793, 3909, 4094,
};

static const float thresholds_8[255] = {
    -0x1.19500cp+2f, -0x1.03a6aep+2f, -0x1.ea1592p+1f, -0x1.d3a18cp+1f, -0x1.c1353ap+1f, -0x1.b184fcp+1f,
    -0x1.a3d896p+1f, -0x1.9777cep+1f, -0x1.8c3dccp+1f, -0x1.8205b6p+1f, -0x1.7885dcp+1f, -0x1.6f9964p+1f,
    -0x1.67404ep+1f, -0x1.5f7a9ap+1f, -0x1.582372p+1f, -0x1.5115fap+1f, -0x1.4a5234p+1f, -0x1.43d81ep+1f,
    -0x1.3da7bap+1f, -0x1.37c108p+1f, -0x1.322408p+1f, -0x1.2cabdep+1f, -0x1.27588ep+1f, -0x1.222a18p+1f,
    -0x1.1d2078p+1f, -0x1.183bb2p+1f, -0x1.137bc6p+1f, -0x1.0ee0bp+1f, -0x1.0a6a74p+1f, -0x1.05f438p+1f,
    -0x1.01a2d6p+1f, -0x1.faec94p+0f, -0x1.f2938p+0f, -0x1.ea841cp+0f, -0x1.e2be68p+0f, -0x1.daf8b6p+0f,
    -0x1.d33302p+0f, -0x1.cbb7p+0f, -0x1.c484bp+0f, -0x1.bd526p+0f, -0x1.b6201p+0f, -0x1.af377p+0f,
    -0x1.a84ed2p+0f, -0x1.a16632p+0f, -0x1.9ac746p+0f, -0x1.947208p+0f, -0x1.8dd31ap+0f, -0x1.87342ep+0f,
    -0x1.80defp+0f, -0x1.7a89b4p+0f, -0x1.747e2ap+0f, -0x1.6e729ep+0f, -0x1.686712p+0f, -0x1.625b88p+0f,
    -0x1.5c4ffcp+0f, -0x1.568e22p+0f, -0x1.50cc48p+0f, -0x1.4b0a6ep+0f, -0x1.454896p+0f, -0x1.3fd06cp+0f,
    -0x1.3a5844p+0f, -0x1.34966ap+0f, -0x1.2f1e42p+0f, -0x1.29a618p+0f, -0x1.242dfp+0f, -0x1.1eff7ap+0f,
    -0x1.19d102p+0f, -0x1.1458dap+0f, -0x1.0ee0bp+0f, -0x1.09b23ap+0f, -0x1.0483c2p+0f, -0x1.ff3df8p-1f,
    -0x1.f5746cp-1f, -0x1.eb177ep-1f, -0x1.e0ba9p-1f, -0x1.d6f104p-1f, -0x1.cd2778p-1f, -0x1.c35decp-1f,
    -0x1.b9946p-1f, -0x1.afcad4p-1f, -0x1.a60148p-1f, -0x1.9c37bcp-1f, -0x1.926e3p-1f, -0x1.88a4a4p-1f,
    -0x1.7f6e7ap-1f, -0x1.76385p-1f, -0x1.6d0228p-1f, -0x1.63389cp-1f, -0x1.596f1p-1f, -0x1.5038e6p-1f,
    -0x1.4702bcp-1f, -0x1.3dcc94p-1f, -0x1.34966ap-1f, -0x1.2b604p-1f, -0x1.222a18p-1f, -0x1.18f3eep-1f,
    -0x1.105128p-1f, -0x1.07ae6p-1f, -0x1.fcf06ep-2f, -0x1.ea841cp-2f, -0x1.d817c8p-2f, -0x1.c6d23ap-2f,
    -0x1.b58caep-2f, -0x1.a3205ap-2f, -0x1.90b408p-2f, -0x1.7f6e7ap-2f, -0x1.6e28ecp-2f, -0x1.5bbc9ap-2f,
    -0x1.4a770cp-2f, -0x1.39317ep-2f, -0x1.26c52cp-2f, -0x1.157f9ep-2f, -0x1.043a1p-2f, -0x1.e5e906p-3f,
    -0x1.c35decp-3f, -0x1.a0d2dp-3f, -0x1.7e47b6p-3f, -0x1.596f1p-3f, -0x1.36e3f4p-3f, -0x1.1458dap-3f,
    -0x1.e39b7cp-4f, -0x1.9e8546p-4f, -0x1.596f1p-4f, -0x1.1458dap-4f, -0x1.9e8546p-5f, -0x1.1458dap-5f,
    -0x1.1458dap-6f, 0x0p+0f, 0x1.1458dap-6f, 0x1.1458dap-5f, 0x1.9e8546p-5f, 0x1.1458dap-4f,
    0x1.596f1p-4f, 0x1.9e8546p-4f, 0x1.e39b7cp-4f, 0x1.1458dap-3f, 0x1.36e3f4p-3f, 0x1.596f1p-3f,
    0x1.7e47b6p-3f, 0x1.a0d2dp-3f, 0x1.c35decp-3f, 0x1.e5e906p-3f, 0x1.043a1p-2f, 0x1.157f9ep-2f,
    0x1.26c52cp-2f, 0x1.39317ep-2f, 0x1.4a770cp-2f, 0x1.5bbc9ap-2f, 0x1.6e28ecp-2f, 0x1.7f6e7ap-2f,
    0x1.90b408p-2f, 0x1.a3205ap-2f, 0x1.b58caep-2f, 0x1.c6d23ap-2f, 0x1.d817c8p-2f, 0x1.ea841cp-2f,
    0x1.fcf06ep-2f, 0x1.07ae6p-1f, 0x1.105128p-1f, 0x1.18f3eep-1f, 0x1.222a18p-1f, 0x1.2b604p-1f,
    0x1.34966ap-1f, 0x1.3dcc94p-1f, 0x1.4702bcp-1f, 0x1.5038e6p-1f, 0x1.596f1p-1f, 0x1.63389cp-1f,
    0x1.6d0228p-1f, 0x1.76385p-1f, 0x1.7f6e7ap-1f, 0x1.88a4a4p-1f, 0x1.926e3p-1f, 0x1.9c37bcp-1f,
    0x1.a60148p-1f, 0x1.afcad4p-1f, 0x1.b9946p-1f, 0x1.c35decp-1f, 0x1.cd2778p-1f, 0x1.d6f104p-1f,
    0x1.e0ba9p-1f, 0x1.eb177ep-1f, 0x1.f5746cp-1f, 0x1.ff3df8p-1f, 0x1.0483c2p+0f, 0x1.09b23ap+0f,
    0x1.0ee0bp+0f, 0x1.1458dap+0f, 0x1.19d102p+0f, 0x1.1eff7ap+0f, 0x1.242dfp+0f, 0x1.29a618p+0f,
    0x1.2f1e42p+0f, 0x1.34966ap+0f, 0x1.3a5844p+0f, 0x1.3fd06cp+0f, 0x1.454896p+0f, 0x1.4b0a6ep+0f,
    0x1.50cc48p+0f, 0x1.568e22p+0f, 0x1.5c4ffcp+0f, 0x1.625b88p+0f, 0x1.686712p+0f, 0x1.6e729ep+0f,
    0x1.747e2ap+0f, 0x1.7a89b4p+0f, 0x1.80defp+0f, 0x1.87342ep+0f, 0x1.8dd31ap+0f, 0x1.947208p+0f,
    0x1.9ac746p+0f, 0x1.a16632p+0f, 0x1.a84ed2p+0f, 0x1.af377p+0f, 0x1.b6201p+0f, 0x1.bd526p+0f,
    0x1.c484bp+0f, 0x1.cbb7p+0f, 0x1.d33302p+0f, 0x1.daf8b6p+0f, 0x1.e2be68p+0f, 0x1.ea841cp+0f,
    0x1.f2938p+0f, 0x1.faec94p+0f, 0x1.01a2d6p+1f, 0x1.05f438p+1f, 0x1.0a6a74p+1f, 0x1.0ee0bp+1f,
    0x1.137bc6p+1f, 0x1.183bb2p+1f, 0x1.1d2078p+1f, 0x1.222a18p+1f, 0x1.27588ep+1f, 0x1.2cabdep+1f,
    0x1.322408p+1f, 0x1.37c108p+1f, 0x1.3da7bap+1f, 0x1.43d81ep+1f, 0x1.4a5234p+1f, 0x1.5115fap+1f,
    0x1.582372p+1f, 0x1.5f7a9ap+1f, 0x1.67404ep+1f, 0x1.6f9964p+1f, 0x1.7885dcp+1f, 0x1.8205b6p+1f,
    0x1.8c3dccp+1f, 0x1.9777cep+1f, 0x1.a3d896p+1f, 0x1.b184fcp+1f, 0x1.c1353ap+1f, 0x1.d3a18cp+1f,
    0x1.ea1592p+1f, 0x1.03a6aep+2f, 0x1.19500cp+2f,
};

static const firni_lloyd lloyd_8 = {
    .unit = 0x1.26c52cp-9f,
    .centre = 2047,
    .levels = levels_8,
    .thresholds = thresholds_8,
};

const firni_lloyd *firni_lloyd_of(uint32_t bits)
{
    switch (bits) {
    case 2: return &lloyd_2;
    case 3: return &lloyd_3;
    case 4: return &lloyd_4;
    case 5: return &lloyd_5;
    default: assert(bits == 8); return &lloyd_8;
    }
}
